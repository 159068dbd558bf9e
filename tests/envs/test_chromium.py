"""Finding a browser: the order, the refusals, the one clear error."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import brotli
import pytest

from guiderail.envs import chromium
from guiderail.envs.chromium import BrowserNotFound


def program(path: Path, says: str = "Chromium 1.2.3", status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any browser; PATH is tmp/bin."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.setenv("GUIDERAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GUIDERAIL_BROWSER", raising=False)
    return tmp_path


def test_the_order(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = program(world / "cache/chromium/headless_shell")
    assert chromium.find().path == str(cached)
    played = program(world / "playwright/chromium_headless_shell-1/linux/chrome-headless-shell")
    assert chromium.find().path == str(played)
    plain = program(world / "bin/chromium")
    assert (chromium.find().path, chromium.find().headless_shell) == (str(plain), False)
    shell = program(world / "bin/chromium-headless-shell")
    assert (chromium.find().path, chromium.find().headless_shell) == (str(shell), True)
    named = program(world / "own")
    monkeypatch.setenv("GUIDERAIL_BROWSER", str(named))
    assert chromium.find().path == str(named)
    assert chromium.find(str(plain)).path == str(plain)


def test_a_broken_one_is_passed_over_but_a_named_one_is_not(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = program(world / "bin/chromium-headless-shell", "libnss3.so: cannot open", 127)
    good = program(world / "bin/chromium")
    assert chromium.find().path == str(good)
    with pytest.raises(BrowserNotFound, match=r"the given path: .*ended with 127: libnss3.so.*Remedy"):
        chromium.find(str(broken))
    monkeypatch.setenv("GUIDERAIL_BROWSER", str(world / "nothing"))
    with pytest.raises(BrowserNotFound, match=r"\$GUIDERAIL_BROWSER: .*no executable file"):
        chromium.find()
    with pytest.raises(BrowserNotFound):
        chromium.install(lambda _: None)  # a wrong name is not answered with a download


def test_the_error_names_every_way(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(why: str) -> object:
        def way() -> None:
            raise RuntimeError(why)

        return way

    monkeypatch.setattr(chromium, "WAYS", tuple((name, fail(f"no luck with {name}")) for name, _ in chromium.WAYS))
    said: list[str] = []
    with pytest.raises(BrowserNotFound) as error:
        chromium.install(said.append)
    text = str(error.value)
    for part in ("on PATH", "Playwright's download", "distribution's package", "npm @sparticuz/chromium", "Remedy"):
        assert part in text
    assert len(said) == 2 * len(chromium.WAYS)


def test_the_npm_package_is_unpacked_with_its_libraries(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(files: dict[str, bytes], mode: str) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    def fetch(into: Path) -> Path:
        libs = packed({"lib/libnss3.so": b"so"}, "w")
        shell = b"#!/bin/sh\necho Chromium 9.9\n"
        parts = {"chromium.br": brotli.compress(shell), "al2023.tar.br": brotli.compress(libs), "fonts.tar.br": b"x"}
        (into / "p.tgz").write_bytes(packed({f"package/bin/{k}": v for k, v in parts.items()}, "w:gz"))
        return into / "p.tgz"

    monkeypatch.setattr(chromium, "_npm_tarball", fetch)
    chromium._by_npm()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(chromium, "SYSTEM_NAMES", ())
    found = chromium.find()
    home = world / "cache/chromium"
    assert (found.path, found.version, found.headless_shell) == (str(home / "headless_shell"), "Chromium 9.9", True)
    assert (home / "lib/libnss3.so").read_bytes() == b"so"
    assert found.environment()["LD_LIBRARY_PATH"].split(":")[0] == str(home / "lib")
