"""Where environments come from: one module per provider, found by name."""

from __future__ import annotations

from guiderail.pool.providers.base import Provider

NAMES = ("local_browser", "noop")


def make_provider(name: str, *, browser: str = "", step_ms: int = 300, call_timeout_s: float = 20.0) -> Provider:
    """The provider called `name`. Imports only that one. Raises ValueError on an unknown name."""
    if name == "local_browser":
        from guiderail.pool.providers.local_browser import LocalBrowserProvider

        return LocalBrowserProvider(browser, step_ms=step_ms, call_timeout_s=call_timeout_s)
    if name == "noop":
        from guiderail.pool.providers.noop import NoopProvider

        return NoopProvider()
    raise ValueError(f"unknown provider {name!r}; known: {', '.join(NAMES)}")
