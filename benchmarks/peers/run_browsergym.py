"""BrowserGym's MiniWoB++ environment (Playwright) on the tasks of `loop.py`; prints JSON.

    python run_browsergym.py [--variant shipped|quick|picture] [--seconds 30] [--episode 5] [--browser PATH]

shipped: all defaults, among them a pause of 0.5 s before each observation and 0.1 s after each Playwright call;
quick: without these pauses; picture: also without the page's DOM and accessibility tree, only Playwright's screenshot.
Its reset starts a browser and a second one for its chat window; that is part of its reset and timed, as is every
reset here. Runs under an interpreter with `requirements.txt`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import logging
import os
from pathlib import Path
from typing import Any

import gymnasium  # type: ignore[import-not-found]
import loop
import numpy as np
import playwright.sync_api
from PIL import Image

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "shipped": ("BrowserGym as shipped", {}),
    "quick": ("BrowserGym, no pauses", {"slow_mo": 0, "pre_observation_delay": 0.0}),
    "picture": (
        "BrowserGym, no pauses, picture only",
        {"slow_mo": 0, "pre_observation_delay": 0.0, "use_raw_page_output": True},
    ),
}
ZOOM = 1.5  # its pictures of MiniWoB++ pages are this much larger, and its actions speak of places in the picture


def pages_url() -> str:
    """Address of the task pages in the installed `miniwob` package."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise SystemExit("the package miniwob is not installed here")
    return (Path(spec.origin).parent / "html" / "miniwob").as_uri() + "/"


def use_browser(path: str) -> None:
    """Let its chat window use the browser `path` too; there is no option for that one."""
    launch = playwright.sync_api.BrowserType.launch

    def with_path(self: Any, **options: Any) -> Any:
        return launch(self, **({"executable_path": path} | options))

    playwright.sync_api.BrowserType.launch = with_path  # type: ignore[method-assign]


def template(name: str, tally: loop.Tally, episode: int, seconds: float, options: dict[str, Any]) -> None:
    """One template's share of the time."""
    made = gymnasium.make(f"browsergym/miniwob.{name}", disable_env_checker=True, **options)

    def look(observation: Any) -> None:
        if "screenshot" in observation:
            tally.picture = (observation["screenshot"].shape[1], observation["screenshot"].shape[0])
        else:
            picture = np.array(Image.open(io.BytesIO(observation["page"].screenshot())).convert("RGB"))
            tally.picture = (picture.shape[1], picture.shape[0])

    def reset(seed: int) -> None:
        look(made.reset(seed=seed)[0])

    def step(x: int, y: int) -> bool:
        observation, _, terminated, truncated, _ = made.step(f"mouse_click({x * ZOOM}, {y * ZOOM})")
        if observation["last_action_error"]:
            raise RuntimeError(f"{name}: {observation['last_action_error']}")
        look(observation)
        return bool(terminated or truncated)

    try:
        loop.play(tally, reset, step, loop.WORK[name], episode, seconds)
    finally:
        made.close()


def main() -> None:
    parser = loop.arguments(__doc__)
    parser.add_argument("--variant", choices=list(VARIANTS), default="shipped")
    args = parser.parse_args()
    os.environ["MINIWOB_URL"] = pages_url()
    import browsergym.miniwob  # type: ignore[import-not-found]  # noqa: F401  (registers its tasks; reads MINIWOB_URL)
    from browsergym.core.action.highlevel import HighLevelActionSet  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)
    name, options = VARIANTS[args.variant]
    options = options | {"action_mapping": HighLevelActionSet(subsets=["coord"]).to_python_code}
    if args.browser:
        options["pw_chromium_kwargs"] = {"executable_path": args.browser}
        use_browser(args.browser)
    loop.adopt_orphans()
    tally = loop.Tally()
    for task in loop.WORK:
        template(task, tally, args.episode, args.seconds / len(loop.WORK), options)
    packages = ("browsergym-miniwob", "playwright")
    version = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    loop.report(tally.figures(name=name, version=version, pages=1))


if __name__ == "__main__":
    main()
