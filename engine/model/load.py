"""A model by what the user says: a catalogue name, a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.core import catalogue
from engine.core.suggestion import unknown_model
from engine.model.architecture import Architecture, architecture_of, token_ids
from engine.model.names import gguf_names, hugging_face_names
from engine.model.random_weights import random_weights
from engine.model.safetensors_file import PICKLES, SafetensorsFolder, refuse_pickle
from engine.model.share import WHOLE, Share
from engine.model.stored import load_weights
from engine.model.weights import Weights

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer


Room = Callable[[int], None]
"""Raises if there is no room for so many bytes."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a model is from, for whoever writes results down."""

    source: str
    """As asked for."""
    kind: str
    """`random`, `safetensors` or `gguf`."""
    files: tuple[tuple[str, int], ...] = ()
    """Files with weights, and their bytes."""
    seed: int | None = None
    """Of random weights."""
    notes: tuple[str, ...] = ()
    """What was left out, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run."""

    architecture: Architecture
    """Of the whole model."""
    weights: Weights
    """Of this rank."""
    tokenizer: Tokenizer | None
    """None where the source has none, or one that is not read here (a note of the provenance says so)."""
    provenance: Provenance


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    room: Room = lambda num_bytes: None,
    share: Share = WHOLE,
) -> LoadedModel:
    """The model of a catalogue name, a Hugging Face folder or a .gguf file, in `dtype` (its own by default).

    With a seed the weights are drawn, whatever the source; a catalogue name has no others. ValueError, before anything
    large is allocated, for what is not a model, is damaged, or is one that is not computed here; its message says what
    was expected, what was found and where. `room` is told the bytes of the weights before any is made, and raises if
    there is none. Of a rank's share no more than that share is read or kept.
    """
    asked, path = str(source), Path(source)
    name, config = catalogue.entry(asked)
    if config is not None:
        if seed is None:
            raise ValueError(
                f"{name}: the catalogue has no weights; give a seed for random ones, or a folder with them"
            )
        return _random(architecture_of(config, name), asked, None, dtype, device, seed, room, share)
    if path.suffix in PICKLES and path.is_file():
        raise refuse_pickle(path)
    if path.suffix == ".gguf":
        return _gguf(path, asked, dtype, device, seed, room, share)
    if path.is_dir():
        return _folder(path, asked, dtype, device, seed, room, share)
    raise unknown_model(asked, catalogue.model_names(), "a folder with config.json or a .gguf file")


def _random(
    architecture: Architecture,
    asked: str,
    tokenizer: Tokenizer | None,
    dtype: torch.dtype | None,
    device: torch.device | str,
    seed: int,
    room: Room,
    share: Share,
    notes: tuple[str, ...] = (),
) -> LoadedModel:
    share.check(architecture)
    room(share.weights_bytes(architecture, dtype or architecture.torch_dtype))
    weights = random_weights(architecture, seed=seed, dtype=dtype, device=device, share=share)
    return LoadedModel(architecture, weights, tokenizer, Provenance(asked, "random", seed=seed, notes=notes))


def _folder(
    folder: Path,
    asked: str,
    dtype: torch.dtype | None,
    device: torch.device | str,
    seed: int | None,
    room: Room,
    share: Share,
) -> LoadedModel:
    from engine.model.tokenizer import tokenizer_of_folder

    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder}: no config.json; expected a folder with it and with *.safetensors")
    architecture = _with_generation_config(architecture_of(catalogue.read_json(path), str(path)), folder)
    tokenizer, notes = tokenizer_of_folder(folder)
    if seed is not None:
        return _random(architecture, asked, tokenizer, dtype, device, seed, room, share, notes)
    stored, dtype = SafetensorsFolder(folder), dtype or architecture.torch_dtype
    share.check(architecture)
    room(share.weights_bytes(architecture, dtype))
    weights = load_weights(architecture, hugging_face_names, stored, dtype=dtype, device=device, share=share)
    return LoadedModel(
        architecture, weights, tokenizer, Provenance(asked, "safetensors", _sizes(stored.files), notes=notes)
    )


def _with_generation_config(architecture: Architecture, folder: Path) -> Architecture:
    """Its end-of-sequence tokens go before those of config.json, as in transformers and vLLM."""
    path = folder / "generation_config.json"
    ids = catalogue.read_json(path).get("eos_token_id") if path.is_file() else None
    try:
        return architecture if ids is None else replace(architecture, eos_token_ids=token_ids(ids))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _gguf(
    path: Path,
    asked: str,
    dtype: torch.dtype | None,
    device: torch.device | str,
    seed: int | None,
    room: Room,
    share: Share,
) -> LoadedModel:
    from engine.model.gguf_file import GGUFFile
    from engine.model.gguf_tokenizer import tokenizer_of_gguf

    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    stored = GGUFFile(path)
    architecture = stored.architecture
    tokenizer, notes = tokenizer_of_gguf(stored.header)
    if seed is not None:
        return _random(architecture, asked, tokenizer, dtype, device, seed, room, share, notes)
    dtype = dtype or architecture.torch_dtype
    share.check(architecture)
    room(share.weights_bytes(architecture, dtype))
    weights = load_weights(architecture, gguf_names, stored, dtype=dtype, device=device, share=share)
    return LoadedModel(architecture, weights, tokenizer, Provenance(asked, "gguf", _sizes((path,)), notes=notes))


def _sizes(files: tuple[Path, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((path.name, path.stat().st_size) for path in files)
