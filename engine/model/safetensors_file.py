"""A Hugging Face folder: config.json, and weights in one safetensors file or in the shards that an index names.

Pickled checkpoints are refused: loading one runs what its author wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.core.catalogue import read_json
from engine.model.weights import Shape

PICKLES = frozenset({".bin", ".ckpt", ".pkl", ".pickle", ".pt", ".pth"})
"""Suffixes of files that only unpickling reads."""
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


def refuse_pickle(path: Path) -> ValueError:
    """The error for a pickled checkpoint."""
    return ValueError(
        f"{path}: a pickled checkpoint can run code when it is loaded, and is not read here; convert it to safetensors "
        "(save_pretrained of transformers, or safetensors.torch.save_file) and keep that file instead"
    )


class SafetensorsFolder:
    """Tensors by name, over all shards; values are read one tensor at a time.

    ValueError for a folder without such files, a missing shard, a file that is not whole, a weight that is not stored
    as plain floating point.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, Shape] = {}
        named = _index(folder)
        paths = sorted({folder / shard for shard in named.values()}) if named else [_only_file(folder)]
        for path in paths:
            if not path.is_file():
                raise ValueError(f"{folder}: missing shard {path.name}, which {_INDEX} names ({len(paths)} in all)")
        for path in paths:
            self._open(path)
        absent = [name for name, shard in named.items() if self._files.get(name) != folder / shard]
        if absent:
            raise ValueError(f"{folder}: {absent[0]} is not in {named[absent[0]]}, where {_INDEX} puts it")
        # What a bare model without its head saves lacks the first part of the names.
        self._prefix = "" if any(name.startswith("model.") for name in self._files) else "model."

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with weights, in order of their names."""
        return tuple(sorted({*self._files.values()}))

    def shapes(self) -> Mapping[str, Shape]:
        """Every tensor, under the name that it has in a whole model."""
        return {self._whole(name): shape for name, shape in self._shapes.items()}

    def read(self, name: str) -> torch.Tensor:
        """One tensor as it is stored."""
        stored = self._stored(name)
        with safe_open(self._files[stored], framework="pt", device="cpu") as file:
            tensor: torch.Tensor = file.get_tensor(stored)
        return tensor

    def read_part(self, name: str, axis: int, start: int, stop: int) -> torch.Tensor:
        """A part along an axis; of the first no other bytes are read."""
        stored = self._stored(name)
        with safe_open(self._files[stored], framework="pt", device="cpu") as file:
            part: torch.Tensor = file.get_slice(stored)[(slice(None),) * axis + (slice(start, stop),)]
        return part

    def _stored(self, name: str) -> str:
        return name.removeprefix(self._prefix) if self._whole(name.removeprefix(self._prefix)) == name else name

    def _whole(self, name: str) -> str:
        return name if name.startswith("lm_head.") else self._prefix + name

    def _open(self, path: Path) -> None:
        """Reads the header of one file."""
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                entries = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                types = {name: str(entry.get_dtype()) for name, entry in entries.items()}
                shapes = {name: tuple(entry.get_shape()) for name, entry in entries.items()}
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole safetensors file: {error}") from error
        for name, dtype in types.items():
            if dtype not in _FLOATS:
                raise ValueError(
                    f"{path}: weight {name} is stored as {dtype}; expected one of {', '.join(sorted(_FLOATS))} "
                    "(quantised checkpoints are not read here)"
                )
            if name in self._files:
                raise ValueError(f"{path}: weight {name} is in {self._files[name].name} as well")
        self._files |= dict.fromkeys(shapes, path)
        self._shapes |= shapes


def _index(folder: Path) -> Mapping[str, str]:
    """Shard of each tensor; empty where there is no index."""
    path = folder / _INDEX
    if not path.is_file():
        return {}
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards or any(not isinstance(shard, str) for shard in shards.values()):
        raise ValueError(f"{path}: expected weight_map with a file for each weight, got {shards!r:.60}")
    strays = sorted({shard for shard in shards.values() if Path(shard).name != shard})
    if strays:
        raise ValueError(f"{path}: expected names of files beside it, got {strays[0]!r}")
    return shards


def _only_file(folder: Path) -> Path:
    if (folder / _SINGLE).is_file():
        return folder / _SINGLE
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{folder}: {len(found)} safetensors files, but neither {_SINGLE} nor {_INDEX}")
    pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise refuse_pickle(pickles[0])
    raise ValueError(
        f"{folder}: no weights; expected {_SINGLE}, or shards with {_INDEX}; random ones need a seed (--weights-seed)"
    )
