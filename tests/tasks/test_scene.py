"""Geometry of scenes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guiderail.actions.types import Click, Drag, Type
from guiderail.tasks.experts.scene import Box, Node, free_point, reading_order, snap, union

UNIT = st.floats(0, 1)


@given(UNIT, UNIT)
def test_snap_lands_on_the_grid_within_half_a_cell(x, y):
    a = snap(Click(x, y))
    for before, after in ((x, a.x), (y, a.y)):
        assert abs(after - before) <= 0.0125 + 1e-9
        assert (after * 40) == pytest.approx(round(after * 40), abs=1e-6)
        assert round(after, 3) == after
    assert snap(a) == a


def test_snap_other_actions():
    assert snap(Drag(0.011, 0.5, 0.99, 0.512)) == Drag(0.0, 0.5, 1.0, 0.5)
    assert snap(Type("x")) == Type("x")
    assert snap(Click(0.33, 0.61), grid=0.1) == Click(0.3, 0.6)


def test_free_point_keeps_the_aim_when_nothing_is_near():
    assert free_point(Node(0.1, 0.1, 0.3, 0.3), (0.21, 0.22), [Box(0.5, 0.5, 0.1, 0.1)]) == (0.21, 0.22)


@given(UNIT, UNIT, st.floats(0.02, 0.5), st.floats(0.02, 0.5))
def test_free_point_is_in_the_node_and_under_no_cover(x, y, w, h):
    node, cover = Node(0.4, 0.4, 0.25, 0.2), Box(x, y, w, h)
    point = free_point(node, node.centre, [cover])
    if point is not None:
        assert node.contains(*point) and not cover.contains(*point)


def test_reading_order_and_union():
    a, b, c = Node(0.5, 0.1, 0.1, 0.1), Node(0.1, 0.1, 0.1, 0.1), Node(0.0, 0.2, 0.1, 0.1)
    assert reading_order([c, a, b]) == [b, a, c]
    box = union([a, c])
    assert (box.x, box.y, box.w, box.h) == pytest.approx((0.0, 0.1, 0.6, 0.2))
