"""Each rule of a fleet's clock is needed: with it broken, some random fleet is not the same skipped and stepped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from engine.core.progress import LivelockError
from sim import fleet_simulation
from sim.replica import Replica
from sim.router import make_router
from sim.sessions import NEVER
from tests.sim.cases import differences
from tests.sim.fleet_cases import play_fleet, random_fleet, seen_of_fleet

MOST_SEEDS = 400
_horizon, _book = Replica._horizon, Replica._book


def runs_go_on_past_arrivals() -> AbstractContextManager[Any]:
    return mock.patch.object(Replica, "_horizon", lambda self, until: _horizon(self, NEVER))


def routers_see_memory_of_a_runs_end() -> AbstractContextManager[Any]:
    def blind(spec: Any) -> Any:
        router = make_router(spec)
        router.reads_memory = False
        return router

    return mock.patch.object(fleet_simulation, "make_router", blind)


def a_step_is_booked_as_if_nobody_came_meanwhile() -> AbstractContextManager[Any]:
    def book(self: Replica) -> Any:
        inbox, self._inbox = self._inbox, type(self._inbox)()
        try:
            return _book(self)
        finally:
            self._inbox = inbox

    return mock.patch.object(Replica, "_book", book)


def turns_are_seen_late() -> AbstractContextManager[Any]:
    """Ends elsewhere do not end a run."""

    def decide(self: Any, ready: Any, now: int) -> None:
        from heapq import heappush

        for index in ready:
            self.replicas[index].decide(self._arrivals.next_time)
            if self.replicas[index].due < NEVER:
                heappush(self._due, (self.replicas[index].due, index))

    return mock.patch("sim.fleet.Fleet._decide", decide)


FAULTS = {
    runs_go_on_past_arrivals: 0,
    routers_see_memory_of_a_runs_end: 0,
    a_step_is_booked_as_if_nobody_came_meanwhile: 110,
    turns_are_seen_late: 0,
}
"""And the first seed that is tried: rare ones are not looked for from the beginning."""


def is_noticed(seed: int, fault: Any) -> bool:
    """Whether the broken fleet, skipped, is not the sound one, stepped."""
    case = random_fleet(seed)
    try:
        sound = seen_of_fleet(play_fleet(case, skip=False))
    except LivelockError:
        return False
    with fault():
        try:
            broken = play_fleet(case)
        except (AssertionError, KeyError, LivelockError):
            return True
    return bool(differences(sound, seen_of_fleet(broken)))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_rule_is_noticed(fault):
    assert any(is_noticed(seed, fault) for seed in range(FAULTS[fault], MOST_SEEDS)), fault.__name__
