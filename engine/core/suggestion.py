"""What to say about a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """An error that names the nearest known spellings, or all of them if none is near."""
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return ValueError(f"unknown {what} {name!r}; {hint}")
