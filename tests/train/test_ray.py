"""The learner on a real Ray cluster of this machine: two processes that train, two that sample, and what kills them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from rank_run import SEEN, SMALL
from worlds import PROCESSOR, MemoryLog, World, make_learner, make_policy, run_rl

from guiderail.checkpoints.sharded import newest_sharded
from guiderail.cluster.head import patiently, scratch
from guiderail.cluster.start import OWN, ClusterError, check_size, ray_cluster
from guiderail.params import Model, Prompt
from guiderail.params_engine import Engine
from guiderail.params_trainer import Trainer
from guiderail.rewards.prm_judge import PrmModel
from guiderail.rewards.process import StepContext

os.environ |= OWN | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}  # before Ray reads them; the cluster's are the same
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'guiderail[ray]'")

from guiderail.cluster.crew import Crew, pieces, reserve  # noqa: E402
from guiderail.models.tiny import save  # noqa: E402
from guiderail.rewards.ray_judges import JudgeActor, RemoteSigns  # noqa: E402
from guiderail.train.ray_learner import Phase, train_on_ray  # noqa: E402
from guiderail.train.ray_ranks import Job  # noqa: E402
from guiderail.train.ray_sampler import EngineActor, RaySampler, Weights  # noqa: E402

TRAINER = Trainer(kind="ray", actor=2, rollout=2, prm=0, restarts=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """This process, attached to a cluster that another one started; at the end that one is killed with -9."""
    log, script = tmp_path_factory.mktemp("head") / "ray.log", Path(__file__).with_name("ray_head.py")
    head = subprocess.Popen([sys.executable, script, log], stdout=subprocess.PIPE, text=True)
    try:
        address = head.stdout.readline().strip()
        assert address.startswith("127.0.0.1:"), log.read_text()
        below = psutil.Process(head.pid).children(recursive=True)
        names = " ".join(p.name() for p in below)
        assert "gcs_server" in names and "raylet" in names
        with ray_cluster(TRAINER.model_copy(update={"address": address}), log):
            yield SimpleNamespace(address=address, head=head)
        assert head.poll() is None, f"the cluster's stage ended by itself: {log.read_text()}"
    finally:
        head.kill()
        head.wait()
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


def rank_pids(head) -> list[int]:
    """Processes that train in the cluster of `head`."""
    below = psutil.Process(head.pid).children(recursive=True)
    return [p.pid for p in below if "RayTrainWorker" in "".join(p.cmdline())]


@pytest.mark.e2e
@pytest.mark.timeout(3000)
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
            killed.append(rank_pids(cluster.head)[0])
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
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
    crew = Crew(Trick, (), reserve(TRAINER), 0, 2, False, 2)
    pids = crew.wait(60)
    os.kill(pids[0], signal.SIGKILL)
    answers = crew.run(["a", "b"], lambda actor, i, piece: actor.do.remote(piece))
    assert [a for a, _ in answers] == ["a", "b"] and answers[0][1] != pids[0] and answers[1][1] == pids[1]
    with pytest.raises(ClusterError, match=r"^no$"):
        crew.run(["raise"], lambda actor, i, piece: actor.do.remote(piece))
    with pytest.raises(ClusterError, match=r"Trick 0 was lost, the 3. of its kind .trainer.restarts = 2"):
        crew.run(["die"], lambda actor, i, piece: actor.do.remote(piece))


def test_a_node_that_was_too_slow_is_started_again(monkeypatch):
    """What the failed try left is ended: all that this process started, which here is the tests' own cluster."""
    ended = []
    monkeypatch.setattr("guiderail.cluster.head.kill_descendants", lambda pid, patience: ended.append(pid))
    told = iter([RuntimeError("The current node timed out during startup."), "up"])

    def start():
        found = next(told)
        if isinstance(found, Exception):
            raise found
        return found

    assert patiently(start) == "up" and ended == [os.getpid()]
    for message in ("no such option", "timed out during startup"):
        with pytest.raises(Exception, match=message):
            patiently(lambda text=message: (_ for _ in ()).throw(Exception(text)), tries=1)


def test_folders_of_killed_clusters_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("guiderail.cluster.head.LONGEST", 1000)
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, living = (tmp_path / f"guiderail-ray-{pid}-x" for pid in (gone.pid, os.getpid()))
    dead.mkdir(), living.mkdir()
    made = scratch()
    assert sorted(tmp_path.iterdir()) == sorted([living, made])
    monkeypatch.setattr("guiderail.cluster.head.LONGEST", 3)
    with pytest.raises(OSError, match="set TMPDIR"):
        scratch()


def test_pieces_are_even_and_in_order():
    assert pieces(list(range(7)), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert pieces([1], 3) == [[1]] and pieces([], 2) == []


def test_a_split_that_the_cluster_cannot_hold_is_refused():
    wide = Trainer(kind="ray", actor=4, rollout=3, prm=1, gpus=8)
    with pytest.raises(ClusterError, match=r"has 4 GPUs; trainer's split of actor 4 \+ rollout 3 \+ prm 1 needs 8"):
        check_size(wide, {"GPU": 4.0, "CPU": 64.0}, "here:1")
    check_size(wide, {"GPU": 8.0, "CPU": 8.0}, "here:1")


class Direct:
    """Two actors of a crew in this process: what `Crew.run` does, without Ray."""

    def __init__(self, *workers) -> None:
        self.actors = [Handle(w) for w in workers]
        self.fresh = [True] * len(workers)
        self.told = []

    def run(self, work, ask):
        self.told.append([len(p) for p in work])
        found = [ask(self.actors[i], i, piece) for i, piece in enumerate(work)]
        self.fresh = [f and i >= len(work) for i, f in enumerate(self.fresh)]
        return found


class Handle:
    """An object whose methods are called with `.remote`; keeps the last argument of each call."""

    def __init__(self, worker) -> None:
        self.worker, self.last = worker, []

    def __getattr__(self, name):
        def remote(*args):
            self.last.append(args[-1])
            return getattr(self.worker, name)(*args)

        return SimpleNamespace(remote=remote)


def test_an_engine_of_two_actors_gives_what_one_gives_with_the_weights_in_training(start, tmp_path, monkeypatch):
    """Actors take the trained adapter, deal the batch in order, and get each frame once."""
    monkeypatch.setattr(ray, "get", lambda x: x)
    learner = make_learner(policy := make_policy(), SMALL)
    with torch.no_grad():
        for n, x in learner.named.items():
            if "lora_B" in n:
                x.copy_(torch.arange(x.numel()).view_as(x).sin() * 0.1)
    world = World(policy, SMALL)
    args = (os.getcwd(), str(start), Model(path=str(start), device="cpu"), SMALL, Engine(), 1, str(tmp_path), 0)
    crew = Direct(EngineActor(*args), EngineActor(*args))
    sampler = RaySampler(crew)
    with pytest.raises(AssertionError, match="handed over"), sampler.sampling(world.frames, 0):
        pass
    sampler.weights = Weights("v1", learner.weights())
    wanted = world.collect(world.tasks(0), 0)[0]
    for _ in range(2):
        with sampler.sampling(world.frames, 0) as world.engine:
            found = world.collect(world.tasks(0), 0)[0]
            world.collect(world.tasks(0), 0)
        for one, other in zip(found, wanted, strict=True):
            assert one.steps[0].completion.ids == other.steps[0].completion.ids
            assert one.steps[0].completion.logprobs == pytest.approx(other.steps[0].completion.logprobs, abs=1e-4)
    assert crew.told == [[4, 4]] * 4
    assert [len(frames) for frames in crew.actors[0].last] == [1, 0, 1, 0]


def test_judges_elsewhere_say_what_one_here_says(start):
    frames = World(make_policy(), SMALL).frames
    steps = [
        StepContext("go", (), frames.paint(n), f"CLICK {n}", frames.paint(n + 1), "act", 160, 210, f"e/{n}")
        for n in range(3)
    ]
    model, prompt = Model(path=str(start), device="cpu"), Prompt()
    crew = Direct(*(JudgeActor(os.getcwd(), str(start), model, prompt, 4) for _ in range(2)))
    signs = RemoteSigns(crew, 4)
    signs.frames = frames
    assert signs.batch == 8 and signs.signs([]).shape == (0, 2)
    found = signs.signs(steps)
    np.testing.assert_allclose(found, PrmModel(make_policy(), prompt, frames).signs(steps), rtol=1e-4)
    assert [sorted(f) for f in crew.actors[0].last] == [sorted({steps[0].before, steps[0].after})]
