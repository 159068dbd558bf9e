"""The lease book against a model: whatever the order of events, a slot has one holder and time is honoured."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from guiderail.pool.leases import Lease, LeaseEnded, LeaseTable, StaleToken, UnknownLease

SLOTS = 3


class LeaseMachine(RuleBasedStateMachine):
    """Model: sets of slots, and per lease the time until which it must live."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(SLOTS)
        self.now = 0.0
        self.up: set[int] = set()
        self.live: dict[str, tuple[int, float, float]] = {}  # id -> slot, ttl, deadline
        self.pins: dict[str, int] = {}
        self.tokens: list[int] = []

    def forget_expired(self) -> None:
        for key, (_, _, deadline) in list(self.live.items()):
            if self.now >= deadline and self.pins.get(key, 0) == 0:
                del self.live[key]

    @rule(slot=st.integers(0, SLOTS - 1))
    def boot(self, slot: int) -> None:
        if slot in self.up:
            with pytest.raises(ValueError):
                self.table.up(slot)
        else:
            self.table.up(slot)
            self.up.add(slot)

    @rule(slot=st.integers(0, SLOTS - 1))
    def break_slot(self, slot: int) -> None:
        self.table.down(slot, "broke")
        self.up.discard(slot)
        self.live = {k: v for k, v in self.live.items() if v[0] != slot}

    @rule(target=held, slot=st.integers(0, SLOTS - 1), ttl=st.floats(0.5, 10))
    def grant(self, slot: int, ttl: float) -> Lease | None:
        free = slot in self.up and all(v[0] != slot for v in self.live.values())
        self.table.expire(self.now)
        self.forget_expired()
        free = slot in self.up and all(v[0] != slot for v in self.live.values())
        if not free:
            with pytest.raises(ValueError):
                self.table.grant(slot, "h", ttl, self.now)
            return None
        lease = self.table.grant(slot, "h", ttl, self.now)
        self.tokens.append(lease.token)
        self.live[lease.id] = (slot, ttl, self.now + ttl)
        return lease

    @rule(lease=held)
    def use(self, lease: Lease | None) -> None:
        if lease is None:
            return
        self.forget_expired()
        if lease.id in self.live:
            assert self.table.get(lease.id, lease.token, self.now) is lease
            slot, ttl, _ = self.live[lease.id]
            self.live[lease.id] = (slot, ttl, self.now + ttl)
            with pytest.raises(StaleToken):
                self.table.get(lease.id, lease.token + 1, self.now)
        else:
            with pytest.raises(LeaseEnded):
                self.table.get(lease.id, lease.token, self.now)

    @rule(lease=held)
    def begin(self, lease: Lease | None) -> None:
        self.forget_expired()
        self.table.expire(self.now)
        if lease is not None and lease.id in self.live:
            self.table.begin(lease)
            self.pins[lease.id] = self.pins.get(lease.id, 0) + 1

    @rule(lease=held)
    def finish(self, lease: Lease | None) -> None:
        if lease is not None and self.pins.get(lease.id, 0) > 0:
            self.table.finish(lease, self.now)
            self.pins[lease.id] -= 1
            if lease.id in self.live:
                slot, ttl, _ = self.live[lease.id]
                self.live[lease.id] = (slot, ttl, self.now + ttl)

    @rule(lease=consumes(held))
    def release(self, lease: Lease | None) -> None:
        if lease is not None:
            self.table.release(lease)
            self.live.pop(lease.id, None)

    @rule(seconds=st.floats(0.1, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.live)
    @rule()
    def tick(self) -> None:
        before = set(self.live)
        self.forget_expired()
        assert {x.id for x in self.table.expire(self.now)} == before - set(self.live)

    @invariant()
    def one_holder_per_slot(self) -> None:
        slots = [x.slot for x in self.table.leases.values()]
        assert len(slots) == len(set(slots))
        assert {i for i, s in enumerate(self.table.state) if s == "leased"} == set(slots)
        assert {i for i, s in enumerate(self.table.state) if s != "down"} == self.up
        assert self.tokens == sorted(set(self.tokens))
        assert set(self.live) <= set(self.table.leases)


LeaseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLeases = LeaseMachine.TestCase


def test_unknown_and_empty() -> None:
    with pytest.raises(UnknownLease):
        LeaseTable(1).get("lease-x", 1, 0.0)
    with pytest.raises(ValueError, match="at least one slot"):
        LeaseTable(0)


def test_expiry_to_the_second() -> None:
    table = LeaseTable(1)
    table.up(0)
    lease = table.grant(0, "h", 10.0, now=100.0)
    assert table.get(lease.id, lease.token, 109.9) is lease  # renewed: lives until 119.9
    assert table.expire(119.8) == []
    assert table.expire(119.9) == [lease]
    with pytest.raises(LeaseEnded, match="expired after 10 s"):
        table.get(lease.id, lease.token, 120.0)
    assert table.idle() == [0]


def test_a_running_call_pins_its_lease() -> None:
    table = LeaseTable(1)
    table.up(0)
    lease = table.grant(0, "h", 1.0, now=0.0)
    table.begin(lease)
    assert table.expire(1000.0) == []
    assert table.get(lease.id, lease.token, 1000.0) is lease
    table.finish(lease, 1000.0)
    assert table.expire(1000.9) == []
    assert table.expire(1001.0) == [lease]
