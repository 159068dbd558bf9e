"""Asynchronous collection: workers go on playing while the trainer trains, one wave (a round of tasks) at a time each.

Guarantees: nothing is handed out that was played by weights more than `max_staleness` updates behind the ones it is to
train: no wave is begun that would be too old by the time its turn comes, and one that was overtaken and became too old
is dropped and counted. The screens of all waves in play never exceed `slots`. What is handed out is in the schedule
before. A worker that dies is replaced and its wave played again, `restarts` times; what goes wrong beyond that is
raised by the next call, never waited for. With a plan (the schedule of an earlier run, or of this one before it was
killed) the same waves are played by the same weights and handed out in the same order. Does not train or sample.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from torch import Tensor

from guiderail.models.frames import FrameStore
from guiderail.rollout.schedule import Schedule, ScheduleError, Taken
from guiderail.rollout.types import Episode
from guiderail.rollout.versions import Versions
from guiderail.rollout.wave import Cost, Order, Wave, digest
from guiderail.rollout.workers import POLL_S, Worker, WorkerDied
from guiderail.tasks.types import TaskSpec

Made = tuple[Order, Callable[[], Wave]]


class Producer:
    """`with Producer(...) as rollouts:` starts the workers; it is what `train.rl.train` collects from.

    make: starts a worker, given its number below `workers`. slots: screens of the env pool; each worker gets its share.
    iterations: updates of the run. on_wave(wave, iteration, round): is told what is handed out. replay: the plan to
    follow to its end; else what `schedule` holds from the resumed iteration on is followed first.
    """

    def __init__(
        self,
        make: Callable[[int], Worker],
        *,
        workers: int,
        slots: int,
        iterations: int,
        max_staleness: int,
        restarts: int,
        versions: Versions,
        schedule: Schedule,
        replay: Sequence[Taken] | None = None,
        on_wave: Callable[[Wave, int, int], None] = lambda wave, iteration, round: None,
    ) -> None:
        if workers > slots:
            raise ValueError(f"{workers} workers share {slots} screens (env.slots): give each at least one")
        self.make, self.slots, self.share = make, slots, slots // workers
        self.iterations, self.max_staleness, self.restarts = iterations, max_staleness, restarts
        self.versions, self.schedule, self.replay, self.on_wave = versions, schedule, replay, on_wave
        self._workers: list[Worker | None] = [None] * workers
        self._playing: dict[int, Order] = {}
        self._ready: list[Made] = []
        self._plan: deque[Taken] = deque()  # to be handed out, in order
        self._planned: deque[Taken] = deque()  # of these, to be begun
        self._newest, self._turn, self._next, self._died = -1, 0, 0, 0
        self._changed = threading.Condition()
        self._failed: BaseException | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._since = time.perf_counter()
        self._waited, self._costs, self._dropped = 0.0, list[Cost](), 0

    def __enter__(self) -> Producer:
        try:
            for k in range(len(self._workers)):
                self._workers[k] = self.make(k)
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()
        self._close()

    def _close(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.close()

    # -- what the trainer calls ---------------------------------------------------------------------------------------

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """These weights train iteration `version` next; what is begun from now on is played by them. The first call
        says where the run begins."""
        with self._changed:
            self._raise()
            if self._newest < 0:
                self._begin(version)
            self.versions.put(version, weights)
            self._newest = self._turn = version
            self.versions.prune(version, self.max_staleness, {o.version for o in self._playing.values()})
            self._changed.notify_all()

    def saved(self, version: int) -> None:
        """The run would resume from this version: what was played by it, or shortly before, may be asked for again."""
        self.versions.saved = version

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """None: a wave has its own."""
        return []

    def collect(self, tasks: list[TaskSpec], iteration: int, round: int = 0) -> tuple[list[Episode], FrameStore]:
        """The next wave. Waits for it; raises what went wrong meanwhile (WorkerError, ScheduleError)."""
        started = time.perf_counter()
        with self._changed:
            self._turn = iteration
            self._changed.notify_all()
            while (made := self._pick(iteration, round)) is None:
                self._raise()
                self._changed.wait(0.1)
            self._turn = iteration + 1
            self._changed.notify_all()
        order, read = made
        wave = read()
        self._waited += time.perf_counter() - started
        entry = Taken(
            iteration, round, order.wave, order.version, order.slots, len(wave.episodes), digest(wave.episodes)
        )
        if self._plan and self._plan[0].wave == order.wave:
            self._check(self._plan.popleft(), entry)
        self.schedule.add(entry)
        self._costs.append(wave.cost)
        self.on_wave(wave, iteration, round)
        return wave.episodes, wave.frames

    def metrics(self, used: Sequence[Episode], iteration: int) -> dict[str, float]:
        """Curves of an iteration; call it at its end.

        staleness/<n>: episodes trained on by weights n updates newer than those that played them. idle_trainer: share
        of the iteration that it waited for rollouts; idle_engine, idle_env: of the engines' time not spent sampling, of
        the screens' time not inside an action, where a wave counts in the iteration that trains on it. waves_dropped,
        worker_restarts: in this iteration.
        """
        now = time.perf_counter()
        seconds, self._since = max(now - self._since, 1e-9), now
        ages = Counter(iteration - e.steps[0].policy_version for e in used if e.steps)
        policy, env = sum(c.policy for c in self._costs), sum(c.env for c in self._costs)
        found = {f"staleness/{n}": float(ages[n]) for n in range(self.max_staleness + 1)}
        found |= {
            "staleness_mean": sum(n * k for n, k in ages.items()) / max(1, sum(ages.values())),
            "idle_trainer": self._waited / seconds,
            "idle_engine": max(0.0, 1.0 - policy / (seconds * len(self._workers))),
            "idle_env": max(0.0, 1.0 - env / (seconds * self.slots)),
            "waves_ready": float(len(self._ready)),
            "waves_dropped": float(self._dropped),
            "worker_restarts": float(self._died),
        }
        self._waited, self._costs, self._dropped, self._died = 0.0, [], 0, 0
        return found

    # -- what is handed out -------------------------------------------------------------------------------------------

    def _begin(self, step: int) -> None:
        """Plan what is known of the run from `step` on."""
        plan = self.schedule.since(step) if self.replay is None else [t for t in self.replay if t.iteration >= step]
        self.versions.begin(step)
        lost = next((i for i, t in enumerate(plan) if t.version < step and not self.versions.has(t.version)), len(plan))
        if lost < len(plan) and self.replay is not None:
            raise ScheduleError(
                f"wave {plan[lost].wave} of the schedule was played by weights {plan[lost].version}, which are gone: "
                "delete the attempt folder, so that the run begins anew"
            )
        if lost < len(plan):
            self.schedule.forget(plan[lost:])
        self._plan = deque(plan[:lost])
        self._planned = deque(t for t in self._plan if not t.dropped)
        self._next = 1 + max((t.wave for t in self.schedule.entries.values()), default=-1)

    def _pick(self, iteration: int, round: int) -> Made | None:
        """Remove the wave whose turn it is from the ready ones; None while it is not ready."""
        while self._plan and self._plan[0].dropped:
            self._drop(self._plan.popleft())
        if self._plan:
            t = self._plan[0]
            if (t.iteration, t.round) == (iteration, round):
                at = next((i for i, (o, _) in enumerate(self._ready) if o.wave == t.wave), None)
                return None if at is None else self._ready.pop(at)
            if self.replay is not None:
                raise ScheduleError(
                    f"iteration {iteration} takes its round {round}, where the schedule goes on with round {t.round} "
                    f"of iteration {t.iteration}: it was recorded under other parameters, or on a machine that rounds "
                    "otherwise"
                )
            self.schedule.forget(list(self._plan))
            self._plan, self._planned = deque(), deque()
        if self.replay is not None:
            raise ScheduleError(
                f"the schedule ends before round {round} of iteration {iteration}: it is of a shorter run"
            )
        while self._ready:
            made = self._ready.pop(0)
            order = made[0]
            if iteration - order.version <= self.max_staleness:
                return made
            self._drop(Taken(iteration, round, order.wave, order.version, order.slots, dropped=True))
        return None

    def _drop(self, taken: Taken) -> None:
        self._dropped += 1
        self.schedule.add(taken)
        self._changed.notify_all()

    def _check(self, planned: Taken, found: Taken) -> None:
        if self.replay is not None and planned != found:
            raise ScheduleError(
                f"wave {found.wave}, played again by weights {found.version}, has other episodes than the schedule "
                f"says ({found.episodes}, sha256 {found.digest[:12]}; recorded: {planned.episodes}, "
                f"{planned.digest[:12]}): an infrastructure error then or now, other software, or a device that is not "
                "deterministic"
            )

    # -- the thread that keeps the workers busy -----------------------------------------------------------------------

    def _raise(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        with self._changed:
            while not self._ends:
                try:
                    self._pump()
                except BaseException as e:
                    self._failed = e
                    self._changed.notify_all()
                    return
                self._changed.wait(POLL_S)

    def _pump(self) -> None:
        """Collect finished waves, replace dead workers, begin what may be begun."""
        for k, worker in enumerate(self._workers):
            assert worker is not None
            try:
                read = worker.poll()
            except WorkerDied as e:
                worker = self._replaced(k, worker, e)
                read = None
            if read is not None:
                self._ready.append((self._playing.pop(k), read))
                self._changed.notify_all()
            if k not in self._playing and (order := self._due()) is not None:
                self._playing[k] = order
                worker.start(order)

    def _replaced(self, k: int, worker: Worker, why: WorkerDied) -> Worker:
        self._died += 1
        self.restarts -= 1
        worker.close()
        if self.restarts < 0:
            raise why
        new = self._workers[k] = self.make(k)
        if k in self._playing:
            new.start(self._playing[k])
        return new

    def _due(self) -> Order | None:
        """The next wave to begin; None when none may be begun now."""
        if self._newest < 0:
            return None
        busy = sum(o.slots for o in self._playing.values())
        if self._planned:
            t = self._planned[0]
            if t.slots > self.slots:
                raise ScheduleError(f"wave {t.wave} of the schedule had {t.slots} screens: raise env.slots to that")
            if t.version > self._newest or busy + t.slots > self.slots:
                return None
            self._planned.popleft()
            return Order(t.wave, t.version, t.slots, self.versions.path(t.version))
        turn = self._turn + len(self._playing) + len(self._ready)  # the update it is for, at the latest
        late = turn >= self.iterations or turn - self._newest > self.max_staleness
        if self.replay is not None or late or busy + self.share > self.slots:
            return None
        self._next += 1
        return Order(self._next - 1, self._newest, self.share, self.versions.path(self._newest))
