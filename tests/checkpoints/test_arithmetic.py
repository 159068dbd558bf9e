"""Merging formulas against numbers worked by hand, and against PEFT on whole vectors."""

import pytest
import torch
from peft.utils.merge_utils import ties

from guiderail.checkpoints.arithmetic import add_tasks, add_ties, average, threshold, trim

ZERO = torch.zeros(4)
ONE, TWO = torch.tensor([3.0, -1.0, 0.1, 2.0]), torch.tensor([1.0, 4.0, -0.2, -5.0])


def test_average_by_hand():
    models = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
    assert average(models, [1.0, 3.0]).tolist() == [2.5, 5.0]  # (1 + 3*3) / 4, (2 + 3*6) / 4
    half = average([t.bfloat16() for t in models], [1.0, 1.0])
    assert half.dtype == torch.float32 and half.tolist() == [2.0, 4.0]


def test_task_arithmetic_by_hand():
    base, a, b = torch.ones(3), torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 3.0, 1.0])
    # 1 + 0.5 * (1 * [1, 0, -1] + 0.5 * [0, 2, 0])
    assert add_tasks(base, [a, b], [1.0, 0.5], 0.5).tolist() == [1.5, 1.5, 0.5]
    assert add_tasks(base, [a], [1.0], -1.0).tolist() == [0.0, 1.0, 2.0]  # negation: forget the task


def test_ties_by_hand():
    # half of each kept: [3, 0, 0, 2] and [0, 4, 0, -5]; sums [3, 4, 0, -3]; signs + + + -; disjoint means [3, 4, 0, -5]
    cut = [threshold(lambda: [ONE], 0.5), threshold(lambda: [TWO], 0.5)]
    assert cut == [2.0, 4.0]
    assert add_ties(ZERO, [ONE, TWO], [1.0, 1.0], 0.5, cut).tolist() == [1.5, 2.0, 0.0, -2.5]
    agree = [torch.tensor([2.0, -4.0]), torch.tensor([4.0, -2.0])]
    assert add_ties(torch.zeros(2), agree, [1.0, 1.0], 1.0, [0.0, 0.0]).tolist() == [3.0, -3.0]


def test_ties_is_pefts_on_one_tensor():
    g = torch.Generator().manual_seed(0)
    base, *models = (torch.randn(40, 25, generator=g) for _ in range(4))
    tasks = [x - base for x in models]
    weights = [1.0, 0.5, 2.0]
    want = base + 0.7 * ties(tasks, torch.tensor(weights), 0.3)
    cut = [threshold(lambda t=t: [t], 0.3) for t in tasks]
    assert torch.allclose(add_ties(base, models, weights, 0.7, cut), want, atol=1e-6)


@pytest.mark.parametrize("density", [0.001, 0.2, 0.5, 0.9, 1.0])
def test_the_threshold_is_that_of_the_whole_vector(density):
    g = torch.Generator().manual_seed(1)
    pieces = [torch.randn(100, 7, generator=g) * 10.0**k for k in (-30, -3, 0, 4)]
    whole = torch.cat([p.flatten() for p in pieces]).abs()
    kept = max(1, round(density * whole.numel()))
    found = threshold(lambda: pieces, density)
    assert found == (whole.topk(kept).values[-1].item() if density < 1 else 0.0)
    assert sum(int((trim(p, found) != 0).sum()) for p in pieces) == kept


def test_ties_at_the_threshold_all_stay():
    equal = torch.tensor([1.0, -1.0, 1.0, 0.5])
    assert threshold(lambda: [equal], 0.25) == 1.0
    assert trim(equal, 1.0).tolist() == [1.0, -1.0, 1.0, 0.0]
    assert threshold(lambda: [torch.zeros(3)], 0.5) == 0.0


def test_what_all_models_share_comes_back_bit_for_bit():
    odd = torch.tensor([0.1, 1e-30, -3.0]).bfloat16()
    same = [odd.clone(), odd.clone()]
    for got in (
        average(same, [0.3, 0.4]),
        add_tasks(odd, same, [1.0, 1.0], 0.3),
        add_ties(odd, same, [1.0, 1.0], 0.3, [0.1, 0.1]),
    ):
        assert got.dtype == torch.bfloat16 and torch.equal(got, odd)
