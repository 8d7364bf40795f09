"""Scripts that run by `python -m` where no command line is installed, with torch and triton alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from experiments import exits


def ended(name: str, work: Callable[[], None]) -> int:
    """Does the work; exit code 0, or behind a line that says why 2 for what cannot be done so, 6 without a device."""
    try:
        work()
    except (ValueError, OSError) as error:
        say(f"{name}: {error}")
        return exits.USAGE
    except exits.DeviceMissing as error:
        say(f"{name}: {error}")
        return exits.NO_DEVICE
    return exits.OK


def say(text: str) -> None:
    """On stderr, at once."""
    print(text, file=sys.stderr, flush=True)
