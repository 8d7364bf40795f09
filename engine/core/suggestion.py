"""What to say about a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """An error that names the nearest known spellings, or all of them if none is near."""
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return ValueError(f"unknown {what} {name!r}; {hint}")


def unknown_model(name: str, known: Iterable[str], files: str) -> ValueError:
    """An error for what is neither a name nor a model on disk; what looks like a path is one. `files`: what may be
    there."""
    path = Path(name)
    if path.is_dir():
        return ValueError(f"model {name!r}: the folder has no config.json; expected {files}")
    if len(path.parts) > 1 or path.suffix in (".json", ".gguf", ".safetensors") or name.startswith(("~", ".")):
        return ValueError(f"model {name!r}: no such file or folder; expected {files}, or a name of the catalogue")
    return unknown_name(f"model (neither in the catalogue, nor {files})", name, known)
