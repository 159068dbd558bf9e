"""The commands `guiderail view` and `guiderail replay`: their options, and what they do with them.

Guarantees: `view` binds loopback unless told otherwise, and demands a token as soon as it does not; `replay` writes
nothing but frames below the attempt folder, and ends with status 1 when what happened differs from what was stored.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from guiderail.errors import InputError

TOKEN_ENV = "GUIDERAIL_VIEW_TOKEN"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _common(p: argparse.ArgumentParser) -> None:
    p.add_argument("--work", metavar="DIR", help="folder of attempts (default: .work beside the results)")


def view_options(p: argparse.ArgumentParser) -> None:
    """Options of `guiderail view`."""
    p.add_argument("results", nargs="?", default="results", help="folder with stored episodes (default: results)")
    p.add_argument(
        "--host", default="127.0.0.1", help=f"address to bind; beyond loopback it asks a token ({TOKEN_ENV})"
    )
    p.add_argument("--port", type=int, default=8766, help="port, 0 = a free one (default: 8766)")
    p.add_argument("--index", metavar="FILE", help="where the index lies (default: in the folder of attempts)")
    _common(p)


def replay_options(p: argparse.ArgumentParser) -> None:
    """Options of `guiderail replay`."""
    p.add_argument("episode", help="name of the episode, e.g. rl/grpo/seed0/miniwob/click-test/12/0/v3/1/0")
    p.add_argument("--results", default="results", metavar="DIR", help="folder with stored episodes (default: results)")
    p.add_argument("--policy", action="store_true", help="ask the checkpoint again instead of doing recorded actions")
    p.add_argument("--checkpoint", metavar="DIR", help="with --policy: these weights (default: those that played it)")
    p.add_argument("--params", default="params.yaml", metavar="FILE", help="where env.* is read (default: params.yaml)")
    _common(p)


def _folders(args: argparse.Namespace) -> tuple[Path, Path]:
    results = Path(args.results)
    if not results.is_dir():
        raise InputError(f"{results}: no such folder. `snakemake --cores all` makes results; or name another folder.")
    return results, Path(args.work) if args.work else results.resolve().parent / ".work"


def _index_file(name: str) -> Path:
    """Where --index says; a file that is no index is left as it is. Raises InputError."""
    file = Path(name).resolve()
    if file.is_dir():
        raise InputError(f"--index {name}: is a folder. Name a file in it.")
    if file.is_file():
        with file.open("rb") as f:
            if f.read(16) not in (b"", b"SQLite format 3\0"):
                raise InputError(f"--index {name}: is no index, and would be overwritten. Name another file.")
    return file


def view(args: argparse.Namespace) -> None:
    """Index what is there and serve until Ctrl-C."""
    import os

    from guiderail.report.viewer import server
    from guiderail.report.viewer.index import Index

    results, work = _folders(args)
    token = ""
    if args.host not in LOOPBACK:
        token = os.environ.get(TOKEN_ENV, "") or secrets.token_urlsafe(24)
        if len(token) < 16:
            raise InputError(f"{TOKEN_ENV}: must have at least 16 characters, or be unset (then one is made)")
    index = Index(results, work, _index_file(args.index) if args.index else None)
    server.serve(index, args.host, args.port, token)


def replay(args: argparse.Namespace) -> None:
    """Replay one episode and say what differs."""
    from guiderail.params import load as load_params
    from guiderail.report.viewer import replay as again
    from guiderail.report.viewer.episode import load
    from guiderail.report.viewer.index import Index
    from guiderail.report.viewer.queries import Explorer

    results, work = _folders(args)
    if args.checkpoint and not args.policy:
        raise InputError("--checkpoint goes with --policy; without it the recorded actions are done")

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    tell(f"reads what is stored below {results} ...")
    index = Index(results, work)
    index.refresh()
    row = Explorer(index).one(args.episode)
    if row is None:
        raise InputError(f"no episode {args.episode!r} below {results}; `guiderail view` lists what there is")
    episode = load(row, lambda sha: False)
    task = again.task_of(episode, results)
    env, frames = load_params(args.params).env, work / "viewer" / "frames"
    params = again.recorded_params(results, work, episode["run"])
    if "env.step_ms" in params:  # the page lives as long after an action as it did then
        env = env.model_copy(update={"step_ms": params["env.step_ms"]})

    def say(text: str) -> None:
        print(text, flush=True)

    say(f"{args.episode}: {task.id}, {len(episode['steps'])} steps, stored outcome {episode['outcome']['kind']}")
    if args.policy:
        checkpoint = Path(args.checkpoint) if args.checkpoint else again.checkpoint_of(episode, results, params)
        tell(f"loads the model {checkpoint} and starts a browser; the first step can take a minute ...")
        found = again.policy(episode, task, env, frames, say, checkpoint=checkpoint, params=params)
    else:
        tell("starts a browser; the first step can take a minute ...")
        found = again.recorded(episode, task, env, frames, say)
    if found.differs is not None:
        tell(f"differs at step {found.differs + 1}: {found.why}")
        raise SystemExit(1)
    say(f"the same {found.steps} steps; frames in {frames}")
