"""Where machines come from: one module per provider, found by name; a provider of the user's own is a plugin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from guiderail import plugins
from guiderail.pool.providers.base import Provider

if TYPE_CHECKING:
    from guiderail.params_cloud import Cloud
    from guiderail.params_desktop import Desktop
    from guiderail.pool.providers.cloud import CloudProvider

CLOUD_NAMES = ("docker", "aws", "volcengine", "aliyun")  # keys of params_cloud.CLOUDS
NAMES = ("local_browser", "local_desktop", "noop", "process", *CLOUD_NAMES)
PAGES_PER_BROWSER = 8  # 16 pages: 85 steps per CPU second with one browser, 104 with two (pages of one draw in turn)


def browsers_for(slots: int, cores: int) -> int:
    """Browser processes for `slots` pages: one for every PAGES_PER_BROWSER, but not more than cores."""
    return max(1, min(cores, -(-slots // PAGES_PER_BROWSER)))


def make_provider(
    name: str,
    *,
    slots: int,
    browser: str = "",
    browsers: int = 0,
    step_ms: int = 300,
    call_timeout_s: float = 20.0,
    root: str = "",
    boot_s: float = 0.0,
    cloud: Cloud | None = None,
    desktop: Desktop | None = None,
) -> Provider:
    """The provider called `name` for `slots` machines; imports only that one. Raises ValueError.

    `root`: (process) folder that stands for the cloud, (local_desktop) where actions are written down; `boot_s` (noop,
    process): how long a machine boots; `cloud` (docker, aws, volcengine, aliyun): what its machines are; `desktop`
    (local_desktop): what its desktops are. A plugin's PROVIDER is called with slots, step_ms and call_timeout_s.
    """
    if name == "local_browser":
        from guiderail.pool.providers.local_browser import LocalBrowserProvider

        count = browsers or browsers_for(slots, os.cpu_count() or 1)
        return LocalBrowserProvider(browser, step_ms=step_ms, call_timeout_s=call_timeout_s, browsers=count)
    if name == "local_desktop":
        return make_desktop(desktop, call_timeout_s, root)
    if name == "noop":
        from guiderail.pool.providers.noop import NoopProvider

        return NoopProvider(boot_s)
    if name == "process":
        from guiderail.pool.providers.process import ProcessProvider

        if not root:
            raise ValueError("provider process needs a folder that stands for its cloud (--vm-root)")
        return ProcessProvider(Path(root), boot_s=boot_s)
    if name in CLOUD_NAMES:
        if cloud is None:
            raise ValueError(f"provider {name} needs env.cloud of params.yaml (--cloud)")
        return make_cloud(name, cloud, call_timeout_s)
    factory = plugins.find("providers", name)
    if factory is not None:
        made: Provider = factory(slots=slots, step_ms=step_ms, call_timeout_s=call_timeout_s)
        return made
    raise ValueError(f"unknown provider {name!r}; known: {', '.join(all_names())}")


def all_names() -> tuple[str, ...]:
    """Providers of ours and of loaded plugins."""
    return (*NAMES, *plugins.names("providers"))


def make_desktop(desktop: Desktop | None, call_timeout_s: float, journal: str = "") -> Provider:
    """The provider local_desktop; without `desktop`, with the defaults of params.yaml."""
    from guiderail.params_desktop import Desktop
    from guiderail.pool.providers.local_desktop import LocalDesktopProvider
    from guiderail.pool.vm.sandbox import Limits
    from guiderail.pool.vm.settle import Rule

    d = desktop or Desktop()
    limits = Limits(d.memory_mb, d.home_mb, d.tmp_mb, d.processes)
    rule = Rule(d.quiet_ms / 1000, d.settle_s)
    size = (d.width, d.height)
    return LocalDesktopProvider(size=size, limits=limits, rule=rule, call_timeout_s=call_timeout_s, journal=journal)


def make_cloud(name: str, cloud: Cloud, call_timeout_s: float = 20.0) -> CloudProvider:
    """The cloud provider called `name` (one of CLOUD_NAMES). Its SDK is imported by `start`."""
    if name == "docker":
        from guiderail.pool.providers.docker import DockerProvider as Kind
    elif name == "aws":
        from guiderail.pool.providers.aws import AwsProvider as Kind  # type: ignore[assignment]
    elif name == "volcengine":
        from guiderail.pool.providers.volcengine import VolcengineProvider as Kind  # type: ignore[assignment]
    else:
        from guiderail.pool.providers.aliyun import AliyunProvider as Kind  # type: ignore[assignment]
    return Kind(cloud, call_timeout_s=call_timeout_s)
