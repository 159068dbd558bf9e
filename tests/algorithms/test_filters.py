"""The DAPO filter against worked numbers, and its accounting against every order of events."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.algorithms.filters import Counts, Refill, keep_groups


@pytest.mark.parametrize(
    ("values", "std", "keep"),
    [
        ([1.75, 1, 0.19], 0.6370, True),
        ([1.0] * 7 + [0.19], 0.2679, False),
        ([1.0] * 6 + [0.19] * 2, 0.3507, True),
        ([1.0] * 4 + [0.55] * 4, 0.225, False),
        ([1.5] * 4 + [1.0] * 4, 0.25, False),
        ([1.75] * 4 + [1.0] * 4, 0.375, True),
        ([0.19], 0.0, False),
    ],
)
def test_threshold_of_the_semi_online_script(values, std, keep):
    assert np.std(values) == pytest.approx(std, abs=5e-5)
    assert keep_groups(values, ["g"] * len(values), [True] * len(values), 0.3)[1].tolist() == [keep]
    assert keep_groups(values, ["g"] * len(values), [True] * len(values), 0.3, singletons=True)[1].tolist() == [
        keep or len(values) == 1
    ]


def test_equality_is_not_above_and_flat_groups_never_pass():
    assert keep_groups([0.0, 1.0], [0, 0], [True, True], 0.5)[1].tolist() == [False]
    assert keep_groups(np.full(7, 0.19, np.float32), [0] * 7, [True] * 7)[1].tolist() == [False]


def test_unmeasured_members_have_no_say():
    index, keep = keep_groups([1, 0, 1, np.nan, 1, 1], list("aabbcc"), [True, True, True, False, True, True])
    assert index.tolist() == [0, 0, 1, 1, 2, 2] and keep.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="threshold"):
        keep_groups([1.0], [0], [True], -1)
    with pytest.raises(ValueError, match="one length"):
        keep_groups([1.0], [0, 1], [True])


def test_refill_by_hand():
    """Want 3. Update 1: two of four kept, then three of four: takes a, b, e; leaves g, h. Update 2: one round of
    which two are kept, takes g, h, i; leaves j. Update 3: two rounds without luck: trains on j alone."""
    state = Refill(3, 2)
    state = state.add("abcd", [True, True, False, False])
    assert not state.done
    with pytest.raises(ValueError, match="of 3 groups"):
        state.take()
    state = state.add("efgh", [True, False, True, True])
    assert state.done
    with pytest.raises(ValueError, match="take the update"):
        state.add("x", [True])
    used, state = state.take()
    assert (used, state.waiting, state.rounds) == (("a", "b", "e"), ("g", "h"), 0)
    used, state = state.add("ijkl", [True, True, False, False]).take()
    assert (used, state.waiting) == (("g", "h", "i"), ("j",))
    used, state = state.add("mnop", [False] * 4).add("qrst", [False] * 4).take()
    assert (used, state.waiting) == (("j",), ())
    assert state.counts == Counts(rounds=5, generated=20, dropped=13, used=7, carried=3, updates=3, short=1, empty=0)
    used, state = state.add("u", [False]).add("v", [False]).take()
    assert used == () and (state.counts.short, state.counts.empty) == (2, 1)
    with pytest.raises(ValueError, match="max_rounds"):
        Refill(1, 0)


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.lists(st.booleans(), min_size=1, max_size=5), max_size=30))
def test_nothing_is_lost_invented_or_taken_twice(want, max_rounds, luck):
    state, made, taken, updates = Refill(want, max_rounds), 0, [], 0
    born, carried = {}, 0
    for verdicts in luck:
        verdicts = verdicts[:want]
        groups = list(range(made, made + len(verdicts)))
        born |= dict.fromkeys(groups, updates)
        made += len(groups)
        state = state.add(groups, verdicts)
        kept = [g for g, k in zip(groups, verdicts, strict=True) if k]
        assert list(state.waiting)[len(state.waiting) - len(kept) :] == kept
        if state.done:
            used, state = state.take()
            assert len(used) <= want and all(updates - born[g] <= 1 for g in used)  # at most one update old
            carried += sum(born[g] < updates for g in used)
            taken += used
            updates += 1
        c = state.counts
        assert c.generated == made == c.dropped + c.used + len(state.waiting)
        assert (c.used, c.updates) == (len(taken), updates)
        assert c.carried == carried
    assert taken == sorted(set(taken))


def test_what_became_too_old_is_dropped_and_counted():
    two = Refill(2, 3, waiting=("a", "b", "c"), old=2).expire([True, False, True])
    assert (two.waiting, two.old) == (("b",), 1)
    assert (two.counts.dropped, two.counts.expired) == (2, 2)
