"""The chapter's sizes and capacities (S01 to S12), from the KV spec and the capacity rules."""

from __future__ import annotations

from engine.core.capacity import (
    GB,
    GIB,
    Capacity,
    capacity_from_blocks,
    capacity_from_bytes,
    capacity_from_tokens,
    chapter_capacity,
)
from engine.core.catalogue import lookup
from engine.core.gpus import lookup_gpu
from engine.core.kv_spec import KVSpec
from engine.core.paged import PagedAllocator
from engine.core.request import Request
from experiments.paper.claims import Claim, Result, exact

KIB, MIB = 2**10, 2**20
BLOCK = 16
LONGEST = 2048


def claim(
    name: str,
    metric: str,
    expected: float,
    unit: str,
    *deviations: str,
    tolerance: float = 0.0,
    confidence: str = "A",
    note: str = "",
) -> Claim:
    """A claim of the chapter. A: the chapter's own number; R: its exact value, recomputed."""
    source = "chapter " + name.split("/")[0]
    return Claim(f"chapter/{name}", metric, expected, unit, tolerance, source, confidence, deviations, note)


def thirteen() -> KVSpec:
    """Llama-2-13B in fp16."""
    return lookup("llama-2-13b").kv_spec("fp16")


def seventy() -> KVSpec:
    """One of two ranks of Llama-3-70B in fp16."""
    return lookup("llama-3-70b").kv_spec("fp16", tp=2)


def judge() -> list[Result]:
    """S01 to S12, S04 and S08 apart."""
    return [*_sequences(), *_blocks(), *_seventy(), *_budget(), *_concurrency()]


def _readings(model: str, tp: int, weights_gb: int | None, headroom_gb: int) -> dict[str, Capacity]:
    """The 80-GB exercise in its three readings of GB: gib, gb, mixed."""
    found = chapter_capacity(
        lookup(model), lookup_gpu("a100-80g"), tp=tp, block_size=BLOCK, weights_gb=weights_gb, headroom_gb=headroom_gb
    )
    return {capacity.rule.removeprefix("chapter-"): capacity for capacity in found}


def _sequences() -> list[Result]:
    """S01 to S03: a token, a sequence, and how many sequences fit beside 26 GB of weights."""
    spec = thirteen()
    sequence = capacity_from_tokens(spec, LONGEST, BLOCK).kv_bytes
    written = round(spec.bytes_per_token / KIB * LONGEST / 10**6, 1)
    readings = {k: v.tokens_in_budget // LONGEST for k, v in _readings("llama-2-13b", 1, 26, 0).items()}
    fits = "sequences of 2,048 tokens in 80 - 26"
    return [
        exact(claim("S01/bytes_per_token", "KV of a token, Llama-2-13B fp16", 819_200, "B"), spec.bytes_per_token),
        exact(claim("S01/kib_per_token", "the same", 800, "KiB", "kib"), spec.bytes_per_token / KIB),
        exact(
            claim("S02/sequence_bytes", "KV of 2,048 tokens", 1_677_721_600, "B", "mixed-units", confidence="R"),
            sequence,
            f"{sequence / GIB:.4f} GiB = {sequence / GB:.3f} GB",
        ),
        exact(
            claim("S02/as_written", "the same, as 800 KiB x 2,048 / 10^6", 1.6, "'GB'", "mixed-units", "rounded"),
            written,
        ),
        exact(claim("S03/as_written", f"{fits}: 54 / 1.6", 33, "sequences", "mixed-units", "rounded"), 54 // written),
        exact(claim("S03/gb", f"{fits}, in 10^9 B", 32, "sequences", "mixed-units", confidence="R"), readings["gb"]),
        exact(claim("S03/gib", f"{fits}, in GiB", 34, "sequences", "mixed-units", confidence="R"), readings["gib"]),
        exact(
            claim("S03/mixed", f"{fits}, GiB less 10^9 B", 35, "sequences", "mixed-units", confidence="R"),
            readings["mixed"],
        ),
    ]


def _blocks() -> list[Result]:
    """S05 to S07: a block of 16 in one layer and in all, and how many a budget holds."""
    spec = thirteen()
    layer, whole = spec.block_bytes_per_layer(BLOCK), spec.block_bytes(BLOCK)
    gib, gb = (capacity_from_bytes(spec, 50 * unit, BLOCK).num_blocks for unit in (GIB, GB))
    return [
        exact(claim("S05/block_bytes_per_layer", "a block in one layer", 327_680, "B"), layer),
        exact(claim("S05/as_written", "the same", 320, "KiB", "kib"), layer / KIB),
        exact(claim("S06/block_bytes", "a complete block", 13_107_200, "B"), whole),
        exact(claim("S06/as_written", "the same", 12.5, "MiB", "kib"), whole / MIB),
        exact(claim("S06/tokens", "in tokens of S01", 16, "tokens", confidence="R"), whole / spec.bytes_per_token),
        exact(
            claim("S07/as_written", "blocks in 50,000 MB / 12.5 MiB", 4000, "blocks", "mixed-units"),
            50_000 // (whole / MIB),
        ),
        exact(claim("S07/gib", "blocks in 50 GiB", 4096, "blocks", "mixed-units", confidence="R"), gib),
        exact(claim("S07/gb", "blocks in 50 x 10^9 B", 3814, "blocks", "mixed-units", confidence="R"), gb),
    ]


def _seventy() -> list[Result]:
    """S09 to S11: Llama-3-70B over two ranks with 6 'GB' for KV on each."""
    spec, readings = seventy(), _readings("llama-3-70b", 2, None, 4)
    gib, gb = readings["gib"], readings["gb"]
    rough = capacity_from_tokens(spec, 39_000, BLOCK).num_blocks
    return [
        exact(
            claim("S09/bytes_per_token_per_layer", "Llama-3-70B, TP=2: a token in one layer of a rank", 2048, "B"),
            spec.bytes_per_token_per_layer,
        ),
        exact(claim("S09/bytes_per_token", "the same in 80 layers", 163_840, "B"), spec.bytes_per_token),
        exact(claim("S09/as_written", "the same", 160, "KiB", "kib"), spec.bytes_per_token / KIB),
        exact(
            claim("S10/as_written", "tokens in 6 GB", 39_000, "tokens", "kib", "rounded", tolerance=500),
            gib.tokens_in_budget,
        ),
        exact(
            claim("S10/gib", "tokens in 6 GiB", 39_321, "tokens", "mixed-units", confidence="R"), gib.tokens_in_budget
        ),
        exact(
            claim("S10/gb", "tokens in 6 x 10^9 B", 36_621, "tokens", "mixed-units", confidence="R"),
            gb.tokens_in_budget,
        ),
        exact(
            claim("S11/as_written", "blocks of 39,000 tokens", 2400, "blocks", "rounded", tolerance=50),
            rough,
            "2,400 is two roundings of 2,457",
        ),
        exact(claim("S11/gib", "blocks in 6 GiB", 2457, "blocks", "rounded", confidence="R"), gib.num_blocks),
        exact(claim("S11/gb", "blocks in 6 x 10^9 B", 2288, "blocks", "mixed-units", confidence="R"), gb.num_blocks),
    ]


def _budget() -> list[Result]:
    """S11b: a card in GiB less weights in 10^9 B nearly doubles the answer."""
    mixed = _readings("llama-3-70b", 2, None, 4)["mixed"]
    return [
        exact(
            claim(
                *("S11b/budget_gib", "80 GiB - 70 x 10^9 B - 4 GiB", 10.8, "GiB", "mixed-units"),
                tolerance=0.05,
                confidence="R",
                note="the chapter has 6",
            ),
            mixed.budget_bytes / GIB,
        ),
        exact(
            claim(
                *("S11b/tokens", "tokens in it", 70_800, "tokens", "mixed-units", "rounded"),
                tolerance=50,
                confidence="R",
            ),
            mixed.tokens_in_budget,
        ),
    ]


def _concurrency() -> list[Result]:
    """S12: 32 conversations of 800 + 256 tokens, allocated for real in the pool of S11."""
    pool = capacity_from_blocks(seventy(), 2457, BLOCK)
    allocator = PagedAllocator(pool.num_blocks, BLOCK, max_model_len=8192, enable_caching=False)
    requests = [Request(i, 800, 256) for i in range(32)]
    for request in requests:
        allocator.admit(request, 800)
    allocator.extend(requests, [1056] * len(requests))
    used = allocator.stats().num_referenced
    return [
        exact(
            claim("S12/tokens", "32 requests of 800 + 256 tokens", 33_792, "tokens"),
            used * BLOCK,
            "no tail: 66 blocks each",
        ),
        exact(claim("S12/blocks", "the same", 2112, "blocks"), used),
        exact(
            claim("S12/used", "share of the 2,457 blocks of S11", 85.96, "%", tolerance=0.005, confidence="R"),
            100 * used / pool.num_blocks,
        ),
    ]
