"""From tensors in a file to the weights of a model: first everything is checked by name and shape, then it is read.

Nothing is allocated before all names and shapes are right. Stored weights that are multiplied together are copied into
one matrix as they are read, so that no weight lies in memory twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from engine.attention.checks import shown
from engine.model.architecture import Architecture
from engine.model.names import Naming, rows_of
from engine.model.share import WHOLE, Placement, Share
from engine.model.weights import Shape, Weights, build_weights, layer_shapes, top_shapes

_LISTED = 3
_WITHOUT_MEANING = (".rotary_emb.inv_freq", "decoder.version")  # tables that older checkpoints kept beside the weights


class StoredTensors(Protocol):
    """A checkpoint: what it has, and each tensor by name."""

    @property
    def where(self) -> str:
        """The file or folder, for messages."""
        ...

    def shapes(self) -> Mapping[str, Shape]:
        """Every stored tensor, by name; reads no values."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, in the type in which it is stored."""
        ...

    def read_part(self, name: str, axis: int, start: int, stop: int) -> torch.Tensor:
        """A part of one tensor, along an axis."""
        ...


def load_weights(
    a: Architecture,
    naming: Naming,
    stored: StoredTensors,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    share: Share = WHOLE,
) -> Weights:
    """All weights of a rank's share, in that type and on that device; no others are read.

    ValueError, before anything is read, for weights that are missing, of another shape, or unknown to the architecture:
    a bias that nobody adds would go unnoticed.
    """
    _check(a, naming, stored)

    def make(layer: int | None, field: str, shape: Shape) -> torch.Tensor:
        placement = share.placement(a, field, shape)
        tensor = torch.zeros(placement.shape(shape), dtype=dtype, device=device)
        at = 0
        for name, axis, start, stop in _parts(placement, naming(a, layer, field), rows_of(a, field, shape), shape):
            whole = start == 0 and stop == stored.shapes()[name][axis]
            values = stored.read(name) if whole else stored.read_part(name, axis, start, stop)
            tensor.narrow(axis, at, stop - start).copy_(values)
            at += stop - start
        return tensor

    return build_weights(a, make)


def _parts(
    placement: Placement, names: tuple[str, ...], rows: tuple[int, ...], shape: Shape
) -> Iterator[tuple[str, int, int, int]]:
    """(stored name, axis, start, stop) of what a rank keeps of a field, in the order of its tensor."""
    axis = placement.axis
    lengths = rows if axis == 0 else (shape[axis],)
    for first, last in placement.ranges:
        base = 0
        for name, length in zip(names, lengths, strict=True):
            start, stop = max(first, base), min(last, base + length)
            if start < stop:
                yield name, axis, start - base, stop - base
            base += length


def _expected(a: Architecture, naming: Naming) -> Iterator[tuple[str, Shape]]:
    """Every stored name and its shape."""
    fields: list[tuple[int | None, str, Shape]] = [(None, *item) for item in top_shapes(a).items()]
    fields += [(layer, *item) for layer in range(a.num_layers) for item in layer_shapes(a).items()]
    for layer, field, shape in fields:
        for name, rows in zip(naming(a, layer, field), rows_of(a, field, shape), strict=True):
            yield name, (rows, *shape[1:])


def _check(a: Architecture, naming: Naming, stored: StoredTensors) -> None:
    found, expected = stored.shapes(), dict(_expected(a, naming))
    model = f"a {a.family} model of {a.num_layers} layers"
    missing = [name for name in expected if name not in found]
    if missing:
        raise ValueError(f"{stored.where}: missing weight {_list(missing)}, which {model} needs")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise ValueError(f"{stored.where}: weight {name}: expected shape {shown(shape)}, got {shown(found[name])}")
    unknown = sorted(name for name in found if name not in expected and not name.endswith(_WITHOUT_MEANING))
    if a.tie_embeddings:
        unknown = [name for name in unknown if not _is_tied_head(a, naming, stored, name)]
    if unknown:
        raise ValueError(f"{stored.where}: weight {_list(unknown)}, which {model} has no use for by its configuration")


def _is_tied_head(a: Architecture, naming: Naming, stored: StoredTensors, name: str) -> bool:
    """Whether this is a second copy of the embedding, as some files have of a tied head."""
    if (name,) != naming(a, None, "lm_head"):
        return False
    (embedding,) = naming(a, None, "embedding")
    if not torch.equal(stored.read(name), stored.read(embedding)):
        raise ValueError(
            f"{stored.where}: {name} is not {embedding}, but the configuration ties them (tie_word_embeddings)"
        )
    return True


def _list(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
