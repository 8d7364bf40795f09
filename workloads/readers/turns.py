"""Which row follows which, for all rows of a file at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.tables import NotPlainError

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


def latest_before(session: Int64s, can_be_followed: Bools) -> Int64s:
    """For each row the last earlier one of its session that can be followed, -1 where there is none or no session."""
    order = np.argsort(session, kind="stable")
    grouped = session[order]
    # Places only rise, so the latest so far is the highest; one of another session lies before the session's start.
    places = np.where(can_be_followed[order], np.arange(len(order)), -1)
    latest = np.concatenate(([-1], np.maximum.accumulate(places)[:-1])) if len(order) else places
    starts = np.searchsorted(grouped, grouped)
    found = np.full(len(session), -1)
    follows = (latest >= starts) & (grouped >= 0)
    found[order[follows]] = order[latest[follows]]
    return found


def rounds_before(session: Int64s, turn: Int64s) -> Int64s:
    """For each row the one of its session with the turn before, -1 for turn 0 or no session.

    Raises NotPlainError where it is missing, or a turn of a session is there twice.
    """
    rows = np.flatnonzero(session >= 0)
    order = rows[np.lexsort((turn[rows], session[rows]))]
    grouped, turns = session[order], turn[order]
    goes_on = np.concatenate(([False], (grouped[1:] == grouped[:-1]) & (turns[1:] == turns[:-1] + 1)))[: len(order)]
    twice = (grouped[1:] == grouped[:-1]) & (turns[1:] == turns[:-1])
    if twice.any() or (~goes_on & (turns != 0)).any():
        raise NotPlainError
    found = np.full(len(session), -1)
    later = np.flatnonzero(goes_on)
    found[order[later]] = order[later - 1]
    return found


def origins(parent: Int64s) -> Int64s:
    """The first row that each goes back to, itself where `parent` is -1. Parents are earlier rows. O(n log depth)."""
    found = np.where(parent >= 0, parent, np.arange(len(parent)))
    while True:
        further = found[found]
        if (further == found).all():
            return found
        found = further


def places_of(wanted: Int64s, keys: Int64s) -> Int64s:
    """Where each wanted key is among `keys`, -1 where it is not. Raises NotPlainError if a key is there twice."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        raise NotPlainError
    place = np.minimum(np.searchsorted(ordered, wanted), len(keys) - 1)
    return np.where(ordered[place] == wanted, order[place], -1)
