"""The learner on a real Ray cluster of this machine: two processes that train, two that sample, and what kills them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rank_run import SEEN, SMALL
from worlds import PROCESSOR, MemoryLog, World, make_policy, run_rl

from guiderail.checkpoints.sharded import newest_sharded
from guiderail.params import Model
from guiderail.params_engine import Engine
from guiderail.params_trainer import Trainer

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'guiderail[ray]'")

from guiderail.cluster.crew import Crew, pieces, reserve  # noqa: E402
from guiderail.cluster.start import ClusterError, check_size, ray_cluster  # noqa: E402
from guiderail.models.tiny import save  # noqa: E402
from guiderail.train.ray_learner import Phase, train_on_ray  # noqa: E402
from guiderail.train.ray_ranks import Job  # noqa: E402
from guiderail.train.ray_sampler import EngineActor, RaySampler  # noqa: E402

TRAINER = Trainer(kind="ray", actor=2, rollout=2, prm=0, restarts=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """This process, attached to a cluster that another one started; at the end that one is killed with -9."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    log, script = tmp_path_factory.mktemp("head") / "ray.log", Path(__file__).with_name("ray_head.py")
    head = subprocess.Popen([sys.executable, script, log], stdout=subprocess.PIPE, text=True)
    try:
        address = head.stdout.readline().strip()
        assert address.startswith("127.0.0.1:"), log.read_text()
        with ray_cluster(TRAINER.model_copy(update={"address": address}), log):
            yield SimpleNamespace(address=address, head=head)
    finally:
        below = psutil.Process(head.pid).children(recursive=True)
        names = " ".join(" ".join(p.cmdline()) for p in below)
        head.kill()
        head.wait()
    assert "gcs_server" in names and "raylet" in names
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == [], "processes outlive a stage that was killed"
    assert not list(Path("/dev/shm").glob(f"*{head.pid}*"))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The world's policy as a folder."""
    folder = tmp_path_factory.mktemp("start")
    save(make_policy().model, PROCESSOR, str(folder))
    return folder


class Sampled(World):
    """The world, sampled by Ray actors; `hook(iteration)` runs in the middle of collecting."""

    def __init__(self, sampler, rl, hook=lambda iteration: None) -> None:
        super().__init__(make_policy(), rl)
        self.sampler, self.hook = sampler, hook

    def collect(self, tasks, iteration, round=0):
        with self.sampler.sampling(self.frames, iteration) as self.engine:
            self.hook(iteration)
            return super().collect(tasks, iteration, round)


def engines(start, work, size=2, restarts=2):
    model = Model(path=str(start), device="cpu")
    args = (os.getcwd(), str(start), model, SMALL, Engine(), 1, str(work), 0)
    return model, Crew(EngineActor, args, reserve(TRAINER), 0, size, False, restarts)


def rank_pids() -> list[int]:
    """Processes that train, newest first."""
    found = [
        p
        for p in psutil.process_iter(["cmdline", "create_time"])
        if "RayTrainWorker" in "".join(p.info["cmdline"] or [])
    ]
    return [p.pid for p in sorted(found, key=lambda p: -p.info["create_time"])]


def test_trains_as_one_process_does_though_a_sampler_and_a_trainer_are_killed(cluster, start, tmp_path):
    """kill -9 of a rollout process while it is needed, and of a learner's process; the curves are those of a run
    without Ray or kills."""
    model, crew = engines(start, tmp_path)
    pids, killed = crew.wait(300), []
    sampler, log, shown = RaySampler(crew), MemoryLog(), []

    def hook(iteration):
        if iteration == 1 and not killed:
            killed.append(pids[1])
            os.kill(pids[1], signal.SIGKILL)
        if iteration == 2 and len(killed) == 1:
            killed.append(rank_pids()[0])
            os.kill(killed[1], signal.SIGKILL)

    phase = Phase(
        Sampled(sampler, SMALL, hook), log, on_start=lambda done: shown.append(("start", done)),
        on_iteration=lambda i, m: shown.append(("iteration", i)),
        on_scored=lambda i, rows: shown.append((i, len(rows))),
    )  # fmt: skip
    job = Job(os.getcwd(), str(start), model, (SMALL,), 0, str(tmp_path))
    train_on_ray(TRAINER, job, [phase], sampler)

    _, alone, totals, _ = run_rl(tmp_path / "alone", SMALL)
    assert len(killed) == 2 and crew.lost == 1 and not psutil.pid_exists(killed[1])
    assert sorted(log.rows) == [0, 1, 2]
    for i, row in alone.rows.items():
        seen = {k: log.rows[i].get(k) for k in SEEN}
        assert seen == pytest.approx({k: row.get(k) for k in SEEN}, rel=2e-3, abs=1e-5)
    assert [s for s in shown if s[0] == "start"] == [("start", 0), ("start", 2)]  # the group came back and went on
    head = newest_sharded(tmp_path)[1]
    assert head["processes"] == 2 and head["step"] == 3
    assert head["meta"]["trained_on"] == totals.trained_on and head["meta"]["optimizer_steps"] == totals.optimizer_steps


class Trick:
    """An actor that answers, raises, or dies."""

    def ready(self):
        return os.getpid()

    def do(self, what):
        if what == "raise":
            raise ClusterError("no")
        if what == "die":
            os._exit(9)
        return what, os.getpid()


def test_a_crew_replaces_the_dead_raises_errors_as_they_are_and_gives_up(cluster):
    crew = Crew(Trick, (), reserve(TRAINER), 0, 2, False, 2)
    pids = crew.wait(60)
    os.kill(pids[0], signal.SIGKILL)
    answers = crew.run(["a", "b"], lambda actor, i, piece: actor.do.remote(piece))
    assert [a for a, _ in answers] == ["a", "b"] and answers[0][1] != pids[0] and answers[1][1] == pids[1]
    with pytest.raises(ClusterError, match=r"^no$"):
        crew.run(["raise"], lambda actor, i, piece: actor.do.remote(piece))
    with pytest.raises(ClusterError, match=r"Trick 0 was lost, the 3. of its kind .trainer.restarts = 2"):
        crew.run(["die"], lambda actor, i, piece: actor.do.remote(piece))


def test_pieces_are_even_and_in_order():
    assert pieces(list(range(7)), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert pieces([1], 3) == [[1]] and pieces([], 2) == []


def test_a_split_that_the_cluster_cannot_hold_is_refused():
    wide = Trainer(kind="ray", actor=4, rollout=3, prm=1, gpus=8)
    with pytest.raises(ClusterError, match=r"has 4 GPUs; trainer's split of actor 4 \+ rollout 3 \+ prm 1 needs 8"):
        check_size(wide, {"GPU": 4.0, "CPU": 64.0}, "here:1")
    check_size(wide, {"GPU": 8.0, "CPU": 8.0}, "here:1")
