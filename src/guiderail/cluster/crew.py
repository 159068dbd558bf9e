"""Actors of one role, each with its place in a placement group, replaced when their process is lost.

Guarantees: `run` gives the answers in the order of the work; a piece whose actor dies (kill -9, a lost node) is asked
again of its successor, so what is asked must depend on nothing but the question; an error that the actor raises is
raised here as it is, and what is lost too often is an error that says how it ended. Not for actors whose state matters:
a successor begins anew, and `fresh` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from guiderail.cluster.start import ClusterError
from guiderail.params_trainer import Trainer

T = TypeVar("T")


def reserve(trainer: Trainer) -> PlacementGroup:
    """Places for the rollout and prm processes, a GPU each where there are any; all or nothing. (Ray Train reserves
    those of the actors in the same way.) Raises ClusterError when others hold them too long."""
    bundle = {"CPU": 1.0, **({"GPU": 1.0} if trainer.gpus else {})}
    group = ray.util.placement_group([dict(bundle)] * (trainer.rollout + trainer.prm), strategy="PACK")
    if not group.wait(trainer.start_timeout_s):
        raise ClusterError(
            f"rollout {trainer.rollout} + prm {trainer.prm} processes got no place within trainer.start_timeout_s = "
            f"{trainer.start_timeout_s:g} s: the cluster has {ray.available_resources()} free. Wait for other jobs, or "
            "lower the split."
        )
    return group


class Crew:
    """`size` actors of `kind` (a class) made with `args`, in the places `first`, `first` + 1, ... of `group`."""

    def __init__(
        self, kind: type, args: tuple[Any, ...], group: PlacementGroup, first: int, size: int, gpus: bool, lives: int
    ) -> None:
        self.kind, self.args, self.group, self.first = kind, args, group, first
        self.gpus, self.lives = gpus, lives
        self.lost = 0
        self.actors = [self._start(i) for i in range(size)]
        self.fresh = [True] * size

    def _start(self, index: int) -> Any:
        place = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=self.first + index
        )
        kind = ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0)(self.kind)
        return kind.options(scheduling_strategy=place, max_restarts=0).remote(*self.args)

    def wait(self, timeout_s: float) -> list[int]:
        """Process ids of all actors, once each is `ready()`. Raises what an actor raised, or ClusterError."""
        try:
            found: list[int] = ray.get([a.ready.remote() for a in self.actors], timeout=timeout_s)
            return found
        except ray.exceptions.GetTimeoutError:
            raise ClusterError(
                f"{len(self.actors)} {self.kind.__name__} were not ready within trainer.start_timeout_s = "
                f"{timeout_s:g} s: raise it if the model only loads slowly"
            ) from None
        except ray.exceptions.RayActorError as e:
            raise _cause(e) from None

    def run(self, work: Sequence[T], ask: Callable[[Any, int, T], Any]) -> list[Any]:
        """Answers to the pieces of `work`, at most one per actor. ask(actor, index, piece): sends it, gives the
        reference of its answer; `fresh[index]` is whether that actor has not answered yet."""
        if len(work) > len(self.actors):
            raise ValueError(f"{len(work)} pieces for {len(self.actors)} actors; give one each at most")
        asked = [ask(self.actors[i], i, piece) for i, piece in enumerate(work)]
        found: list[Any] = []
        for i, piece in enumerate(work):
            while True:
                try:
                    found.append(ray.get(asked[i]))
                    self.fresh[i] = False
                    break
                except ray.exceptions.RayTaskError as e:
                    raise _cause(e) from None
                except ray.exceptions.RayActorError as e:
                    self.lost += 1
                    if self.lost > self.lives:
                        raise ClusterError(
                            f"{self.kind.__name__} {i} was lost, the {self.lost}. of its kind (trainer.restarts = "
                            f"{self.lives}): {' '.join(str(e).split())[:300]}. Out of memory? Run the same command "
                            "again to go on from the last checkpoint."
                        ) from None
                    self.actors[i], self.fresh[i] = self._start(i), True
                    asked[i] = ask(self.actors[i], i, piece)
        return found


def _cause(error: Any) -> BaseException:
    """The error of ours that Ray wraps, or Ray's own."""
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else error  # type: ignore[no-any-return]


def pieces(items: Sequence[T], n: int) -> list[list[T]]:
    """`items` in order in at most `n` runs of nearly one length, none empty."""
    n = min(n, len(items))
    cuts = [len(items) * k // n for k in range(n + 1)] if n else [0]
    return [list(items[a:b]) for a, b in pairwise(cuts)]
