"""Parameters of a local desktop (`env.desktop`)."""

from __future__ import annotations

from pydantic import Field

from guiderail.param_section import Section


class Desktop(Section):
    """A desktop of provider local_desktop: its screen, when it counts as settled, what its programs may use."""

    width: int = Field(1280, ge=320, le=4096, description="Pixels.")
    height: int = Field(720, ge=240, le=4096, description="Pixels.")
    quiet_ms: float = Field(60.0, ge=0, le=10_000, description="A settled screen has been still for so long.")
    settle_s: float = Field(3.0, gt=0, le=60, description="Longest wait for a settled screen after an action.")
    memory_mb: int = Field(3072, ge=128, le=1_000_000, description="Of all programs; the largest is killed above it.")
    home_mb: int = Field(512, ge=16, le=100_000, description="Of the home folder, and of one file.")
    tmp_mb: int = Field(256, ge=16, le=100_000, description="Of /tmp and of /dev/shm.")
    processes: int = Field(400, ge=64, le=100_000, description="Processes and threads.")
