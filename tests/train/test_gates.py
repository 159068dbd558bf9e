"""Gates and batching on rows made by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guiderail.models.rows import ChunkRow
from guiderail.train.batch import microbatches, minibatches
from guiderail.train.gates import GateError, check_logprobs, check_rows

IMAGE = 9


def row(ids=(1, 9, 9, 5, 6), frames=("f",), spans=((3, 5),), n=2):
    return ChunkRow(np.array(ids), frames, spans, np.zeros(n, np.float32), (0,))


def test_whole_rows_pass():
    check_rows([row()], ["r"], IMAGE, {"f": 2}.__getitem__)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (row(ids=(1, 9, 3, 5, 6)), "row r: 1 image tokens but 2 features in its 1 frames"),
        (row(frames=("f", "f")), "row r: 2 image tokens but 4 features"),
        (row(n=3), "row r: 2 tokens in 1 spans, 3 log-probs"),
        (row(spans=(), n=0), "row r: 0 tokens in 0 spans"),
        (row(spans=((4, 6),)), "row r: spans"),
        (row(spans=((0, 2),)), "row r: spans"),
    ],
)
def test_bad_rows_are_refused_by_name(bad, text):
    with pytest.raises(GateError, match=text):
        check_rows([row(), bad], ["fine", "r"], IMAGE, {"f": 2}.__getitem__)


def test_logprob_gap_names_row_and_token():
    train, owner = torch.tensor([-1.0, -2.0, -3.0, -4.0]), torch.tensor([0, 0, 1, 1])
    gap = check_logprobs(train, train + torch.tensor([0.0, 0.001, 0.0, -0.003]), owner, ["a", "b"], 0.01)
    assert gap.max == pytest.approx(0.003, abs=1e-6) and gap.mean == pytest.approx(0.001, abs=1e-6)
    with pytest.raises(GateError, match=r"row b: sampled token 1 has log-prob -4.000000 .* -4.020000"):
        check_logprobs(train, train - torch.tensor([0.0, 0.0, 0.0, 0.02]), owner, ["a", "b"], 0.01)
    for broken in (float("nan"), float("-inf")):
        with pytest.raises(GateError, match="row b: sampled token 0"):
            check_logprobs(torch.tensor([-1.0, -2.0, broken, -4.0]), train, owner, ["a", "b"], 0.01)
    assert check_logprobs(train[:0], train[:0], owner[:0], [], 0.01).max == 0.0


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 16))
def test_minibatches_partition_and_never_split_an_episode(episodes, size):
    batches = minibatches(episodes, size, "t", 0)
    assert sorted(i for b in batches for i in b) == list(range(len(episodes)))
    homes = [{episodes[i] for i in b} for b in batches]
    assert all(not homes[i] & homes[j] for i in range(len(homes)) for j in range(i))
    assert all(2 * len(b) >= size for b in batches[1:])
    assert minibatches(episodes, size, "t", 0) == batches


def test_minibatch_order_depends_on_the_seed():
    assert minibatches(list(range(40)), 8, "t", 0) != minibatches(list(range(40)), 8, "t", 1)


def test_microbatches_sort_by_length():
    rows = [row(ids=(1,) * n) for n in (50, 40, 90, 49, 51)]
    assert microbatches(rows, [0, 1, 2, 3, 4], 2) == [[1, 3], [0, 4], [2]]
    assert microbatches(rows, [0, 1, 2, 3, 4], 9) == [[1, 3, 0], [4], [2]]  # 51 > 1.25 * 40


def test_packed_microbatches_put_rows_that_begin_alike_together():
    rows = [row(ids=(1, 9, 9, k, 6), frames=(f,)) for f, k in [("a", 5), ("b", 5), ("a", 300), ("b", 5), ("a", 5)]]
    assert microbatches(rows, [0, 1, 2, 3, 4], 3, "packed") == [[0, 4, 2], [1, 3]]
    assert microbatches(rows, [4, 1, 2], 2, "packed") == [[4, 2], [1]]
