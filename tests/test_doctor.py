"""The doctor says what is there and what to do; it installs only when told to, and only as root."""

import subprocess
from typing import Any

import pytest

from guiderail import doctor
from guiderail.cli import main
from guiderail.pool.vm import packages, sandbox


def test_the_report_names_a_remedy_for_what_lacks(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(packages, "missing", lambda: ["bubblewrap", "xvfb"])
    monkeypatch.setattr(sandbox, "refusal", lambda: "bwrap: setting up uid map: Permission denied")
    monkeypatch.setattr(doctor, "browser", lambda: doctor.Finding("browser", True, "there"))
    monkeypatch.setattr(doctor, "CHECKS", [doctor.browser, doctor.desktop, doctor.walls, doctor.disk])
    with pytest.raises(SystemExit, match="1"):
        main(["doctor"])
    told = capsys.readouterr().out
    assert "missing desktop packages: missing: bubblewrap, xvfb" in told and "doctor --install desktop" in told
    assert "would NOT be isolated" in told and "unprivileged_userns_clone" in told


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as s:
        monkeypatch.setattr(doctor, "POOL_PORT", s.getsockname()[1])
        finding = doctor.ports()
        assert finding.ok is None and str(s.getsockname()[1]) in finding.detail


def test_installing_without_root_prints_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "not_installed", lambda wanted: ["openbox", "tint2"])
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/apt-get")
    with pytest.raises(doctor.NotInstalled, match="sudo apt-get install -y --no-install-recommends openbox tint2"):
        doctor.install("desktop")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    with pytest.raises(doctor.NotInstalled, match="no apt-get here"):
        doctor.install("desktop")


def test_installing_updates_the_lists_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        failed = command[1:2] == ["install"] and len(ran) < 3
        return subprocess.CompletedProcess(command, 100 if failed else 0)

    monkeypatch.setattr(packages, "not_installed", lambda wanted: ["openbox"])
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(doctor.subprocess, "run", run)
    doctor.install("desktop", lambda said: None)
    assert [c[:2] for c in ran] == [["true"], ["apt-get", "install"], ["apt-get", "update"], ["apt-get", "install"]]
    monkeypatch.setattr(packages, "not_installed", lambda wanted: [])
    doctor.install("desktop", lambda said: None)
    assert len(ran) == 4
