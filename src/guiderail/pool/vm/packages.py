"""The distribution's packages that make a local desktop, and which of them are missing. Debian and Ubuntu names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROGRAMS = {
    "bwrap": "bubblewrap",
    "Xvfb": "xvfb",
    "dbus-daemon": "dbus",
    "openbox": "openbox",
    "pcmanfm": "pcmanfm",
    "tint2": "tint2",
}
"""Without these there is no desktop: program -> package."""

PACKAGES = (
    *PROGRAMS.values(),
    "mousepad",
    "galculator",
    "xfce4-terminal",
    "ristretto",
    "at-spi2-core",
    "libatk-adaptor",
    "gir1.2-atspi-2.0",
    "python3-gi",
    "xkb-data",
    "fonts-dejavu-core",
    "shared-mime-info",
    "adwaita-icon-theme",
    "gsettings-desktop-schemas",
    "dconf-gsettings-backend",
)
OFFICE = ("libreoffice-calc", "libreoffice-writer", "libreoffice-gtk3")
OFFICE_PARTS = {
    "libreoffice-calc": "/usr/lib/libreoffice/program/libsclo.so",
    "libreoffice-writer": "/usr/lib/libreoffice/program/libswlo.so",
}
"""Package -> a file of it, as Debian and Ubuntu lay it out."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def missing() -> list[str]:
    """Packages whose programs a desktop cannot do without and that are not there."""
    lacking = [package for program, package in PROGRAMS.items() if shutil.which(program, path=PATH) is None]
    if not Path("/usr/bin/python3").exists():
        lacking.append("python3")
    return lacking


def lacks_office() -> list[str]:
    """Packages of LibreOffice without which the office suite's files do not open."""
    return [package for package, file in OFFICE_PARTS.items() if not Path(file).exists()]


def not_installed(packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """Those of `packages` that dpkg does not know as installed; all when there is no dpkg."""
    if shutil.which("dpkg-query") is None:
        return list(packages)
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    told = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60).stdout
    there = {line.split()[0] for line in told.splitlines() if line.endswith(" installed")}
    return [p for p in packages if p not in there]
