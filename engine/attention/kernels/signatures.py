"""Triton's types of the arguments of every kernel, as a launch on a device would find them."""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime.jit import mangle_type

from engine.attention.kernels import launch_mla_hopper
from engine.attention.kernels.inputs_mla import LatentMatrix
from engine.attention.kernels.launch_hopper import cache_descriptor, query_descriptor
from engine.attention.kernels.matrix import CacheMatrix
from engine.attention.kernels.variant import DTYPES

POINTERS = {
    "SEQ_LENS": "*i32",
    "ITEMS": "*i32",
    "SEQS": "*i32",
    "SKIP": "*i32",
    "GROUPS": "*i32",
    "MEMBERS": "*i32",
    "OWN_LENS": "*i32",
    "OWN_SEQS": "*i32",
    "QUERY_STARTS": "*i32",
    "NEXT_ITEM": "*i32",
    "PART": "*fp32",
    "LSE": "*fp32",
    "OWN_PART": "*fp32",
    "OWN_LSE": "*fp32",
    "SLOTS": "*i64",
    "PAIRS": "*i64",
    "K_SCALE": "*fp32",
    "V_SCALE": "*fp32",
}
FLOATS = ("scale", "soft_cap")


def type_of(name: str, dtype: str, constants: dict[str, Any]) -> str:
    """Triton's type of a kernel argument: capitals are pointers."""
    if name == "TABLE":
        return "*i64" if constants["PAGES"] == "contiguous" else "*i32"
    if name.endswith("_DESC"):
        return _descriptor_type(name, dtype, constants)
    if name in FLOATS:
        return "fp32"
    if constants.get("FP8") and name in stored_in(constants):
        return "*i16" if "SPLIT" in constants else "*u8"
    return POINTERS.get(name, f"*{dtype}") if name.isupper() else "i32"


def stored_in(constants: dict[str, Any]) -> tuple[str, str]:
    """Names of the caches: the write has K and V besides."""
    return ("K_CACHE", "V_CACHE") if "TOKENS" in constants else ("K", "V")


def _descriptor_type(name: str, dtype: str, constants: dict[str, Any]) -> str:
    if "GROUP" in constants:
        return hopper_descriptor(name, dtype, constants)
    return latent_descriptor(name, dtype, constants) if "BOX" in constants else descriptor(name, dtype, constants)


def descriptor(name: str, dtype: str, constants: dict[str, Any]) -> str:
    """Of prefill_kernel's K_DESC and V_DESC, mla_decode_kernel's C_DESC and E_DESC; without TMA they are tensors."""
    dtype = "u8" if constants.get("FP8") else dtype
    columns = {"C_DESC": "BLOCK_R", "E_DESC": "BLOCK_ROT"}.get(name, "BLOCK_D")
    return f"tensordesc<{dtype}[{constants['BLOCK_N']}, {constants[columns]}]>" if constants["TMA"] else f"*{dtype}"


def hopper_descriptor(name: str, dtype: str, constants: dict[str, Any]) -> str:
    """Of hopper_kernel's, from what its launcher makes of tensors without memory: the type carries box and layout."""
    box, group, head_size = constants["BOX"], constants["GROUP"], constants["D"]
    if name == "Q_DESC":
        q = torch.empty(1, group, head_size, dtype=DTYPES[dtype], device="meta")
        return str(mangle_type(query_descriptor(q, group) if constants["TMA_Q"] else q))
    cache = torch.empty(1, box, 1, head_size, dtype=DTYPES[dtype], device="meta")
    matrix = CacheMatrix.of(cache, cache, box)
    assert matrix is not None
    return str(mangle_type(cache_descriptor(cache, matrix, box)))


def latent_descriptor(name: str, dtype: str, constants: dict[str, Any]) -> str:
    """Of mla_pair_kernel's, made likewise."""
    latents = torch.empty(1, 64, launch_mla_hopper.LATENT, dtype=DTYPES[dtype], device="meta")
    if name == "Q_DESC":
        return str(mangle_type(launch_mla_hopper.query_descriptor(latents)))
    matrix = LatentMatrix.of(latents)
    assert matrix is not None
    return str(mangle_type(launch_mla_hopper.latent_descriptor(latents, matrix, constants["BOX"])))
