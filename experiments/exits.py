"""Exit codes, and the errors that lead to them."""

from __future__ import annotations

OK = 0
BUG = 1
USAGE = 2
FAILED_CELLS = 3
INVALID = 4
COMPARISON = 5
NO_DEVICE = 6
INTERRUPTED = 130


class UsageError(ValueError):
    """What the user asked for cannot be done: says what, where, and what to do instead."""


class RunBroken(RuntimeError):  # noqa: N818 - what happened, not a mistake
    """A run could not be finished, and neither the user nor pagelab is to blame: a process of it was killed."""


class DeviceMissing(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """A device or a package that a run needs is not there."""
