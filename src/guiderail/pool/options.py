"""Options that name a pool's machines, shared by the server and `guiderail pool`. Imports nothing heavy."""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from guiderail import plugins
from guiderail.pool.providers import NAMES, make_provider
from guiderail.pool.providers.base import Provider

if TYPE_CHECKING:
    from guiderail.params_cloud import Cloud
    from guiderail.params_desktop import Desktop


def add_machine_options(p: argparse.ArgumentParser) -> None:
    """Which machines, and where they are written down: the server and `guiderail pool` must agree on these."""
    p.add_argument("--provider", default="local_browser", help=f"one of {', '.join(NAMES)}, or a plugin's name")
    p.add_argument(
        "--plugin", action="append", default=[], metavar="KIND/NAME", help="load plugins/KIND/NAME.py (repeat for more)"
    )
    p.add_argument("--state", default="", metavar="FILE", help="what must survive a restart; empty = nothing does")
    p.add_argument(
        "--name", default="", help="label of the machines; two pools of one account need two (default: from FILE)"
    )
    p.add_argument(
        "--vm-root",
        default="",
        metavar="DIR",
        help="process: the folder that is its cloud; local_desktop: where actions are written down",
    )
    p.add_argument("--cloud", default="", metavar="FILE", help="cloud providers: a params.yaml, or env.cloud as JSON")
    p.add_argument("--desktop", default="", metavar="FILE", help="local_desktop: a params.yaml, or env.desktop as JSON")


def command_options(p: argparse.ArgumentParser) -> None:
    """Command line of `guiderail pool`."""
    p.add_argument("do", choices=("list", "sweep", "costs"), help="list machines, end those nobody answers for, costs")
    add_machine_options(p)
    p.add_argument("--all-pools", action="store_true", help="machines of every pool; of others only expired ones go")
    p.add_argument("--yes", action="store_true", help="sweep: do it; without, only say what would go")
    p.add_argument("--json", action="store_true", help="for machines")


def pool_name(name: str, state: str) -> str:
    """The label: as given, or one that another state file does not have."""
    where = f"{socket.gethostname()}:{Path(state).resolve() if state else os.getpid()}"
    return name or "pool-" + hashlib.sha256(where.encode()).hexdigest()[:8]


def provider_of(a: argparse.Namespace) -> Provider:
    """The provider as the options say; loads the plugins they name. Raises ValueError, PluginError."""
    plugins.activate_words(a.plugin)
    return make_provider(
        a.provider,
        slots=getattr(a, "slots", 1),
        browser=getattr(a, "browser", ""),
        browsers=getattr(a, "browsers", 0),
        step_ms=getattr(a, "step_ms", 300),
        call_timeout_s=getattr(a, "call_timeout", 20.0),
        root=a.vm_root,
        boot_s=getattr(a, "boot_s", 0.0),
        cloud=cloud_of(a.cloud) if a.cloud else None,
        desktop=desktop_of(a.desktop) if a.desktop else None,
    )


def desktop_of(text: str) -> Desktop:
    """`--desktop`. Raises ValueError, ParamError."""
    from guiderail.params import load
    from guiderail.params_desktop import Desktop

    return Desktop.model_validate_json(text) if text.lstrip().startswith("{") else load(text).env.desktop


def cloud_of(text: str) -> Cloud:
    """`--cloud`. Raises ValueError, ParamError."""
    from guiderail.params import load
    from guiderail.params_cloud import Cloud

    return Cloud.model_validate_json(text) if text.lstrip().startswith("{") else load(text).env.cloud
