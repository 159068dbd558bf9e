"""The `miniwob` package's own Gymnasium environment (Selenium) on the tasks of `loop.py`; prints JSON.

    python run_selenium.py [--seconds 30] [--episode 5] [--browser PATH] [--chromedriver PATH]

As shipped: a screenshot with each observation (its default), no pause after an action (its default). One environment,
and so one browser, per template; starting it is not timed. Runs under an interpreter with `requirements.txt`.
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import gymnasium  # type: ignore[import-not-found]
import loop
import miniwob
import numpy as np
from miniwob.action import ActionTypes

NAME = "miniwob (Selenium)"


def template(name: str, tally: loop.Tally, episode: int, seconds: float) -> None:
    """One template's share of the time."""
    made = gymnasium.make(f"miniwob/{name}-v1", disable_env_checker=True)
    env: Any = made.unwrapped

    def look(observation: Any) -> None:
        picture = observation["screenshot"]
        tally.picture = (picture.shape[1], picture.shape[0])

    def reset(seed: int) -> None:
        look(made.reset(seed=seed)[0])

    def step(x: int, y: int) -> bool:
        action = env.create_action(ActionTypes.CLICK_COORDS, coords=np.array([x, y], dtype=np.float32))
        observation, _, terminated, truncated, _ = made.step(action)
        look(observation)
        return bool(terminated or truncated)

    try:
        loop.play(tally, reset, step, loop.WORK[name], episode, seconds)
    finally:
        made.close()
        loop.end_leftovers()  # where the browser's command is a shell script, chromedriver ends the script only


def main() -> None:
    parser = loop.arguments(__doc__)
    parser.add_argument("--chromedriver", default="", help="path of its chromedriver; goes with --browser")
    args = parser.parse_args()
    if args.browser:
        os.environ["MINIWOB_CHROME_BINARY"] = args.browser
        os.environ["MINIWOB_CHROMEDRIVER"] = args.chromedriver
    gymnasium.register_envs(miniwob)
    loop.adopt_orphans()
    tally = loop.Tally()
    for name in loop.WORK:
        template(name, tally, args.episode, args.seconds / len(loop.WORK))
    version = f"miniwob {importlib.metadata.version('miniwob')}, selenium {importlib.metadata.version('selenium')}"
    loop.report(tally.figures(name=NAME, version=version, pages=1))


if __name__ == "__main__":
    main()
