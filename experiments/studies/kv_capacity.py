"""What the storage type and the attention of a model are worth in requests: KV dtype, grouped heads, a latent.

Half the bytes a token are twice the tokens in the same memory, and about as many more requests. The arithmetic is
exact; that running requests follow it is simulated, with one model's step times for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.core.catalogue import lookup
from experiments.paper.claims import Claim, Result, exact, over_seeds
from experiments.paper.experiment import Experiment, Picture, Table
from experiments.paper.judgement_pictures import bars_said, caption_of
from experiments.paper.trials import seeds
from experiments.studies.case import Case, case, frame_of, mean_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import FigureBase as Canvas

    from experiments.paper.runs import Lab

NAME: Final = "kv-capacity"
LISTED: Final = (
    ("llama-2-7b", "bf16"),
    ("llama-3-8b", "bf16"),
    ("llama-3-8b", "fp8"),
    ("llama-3-8b", "int4"),
    ("llama-2-70b", "bf16"),
    ("deepseek-67b", "bf16"),
    ("deepseek-v2", "bf16"),
    ("deepseek-v2", "int6"),
)
SIMULATED: Final = (("llama-2-7b", "bf16"), ("llama-3-8b", "bf16"), ("llama-3-8b", "fp8"))
KV_BYTES: Final = 4 * 2**30
NUM_REQUESTS, NUM_QUICK_REQUESTS = 800, 400
SETTINGS: Final = (
    ("gpu", "a100-80g"),
    ("allocator", "paged"),
    ("max_model_len", 2048),
    ("kv_bytes", KV_BYTES),
    ("step_model", "paper-13b"),
    ("enable_prefix_caching", False),
    ("max_num_seqs", 1024),
)


def token_bytes(model: str, dtype: str) -> int:
    """Bytes of a token's KV on one device that holds all layers and heads."""
    return lookup(model).kv_spec(dtype, 1, 1).bytes_per_token


def _case(lab: Lab, model: str, dtype: str, seed: int) -> Case:
    count = NUM_QUICK_REQUESTS if lab.quick else NUM_REQUESTS
    return case(SETTINGS, count, 0.0, seed, model=model, kv_cache_dtype=dtype)


def runs(lab: Lab) -> list[Case]:
    """The models that are simulated."""
    return [_case(lab, model, dtype, seed) for model, dtype in SIMULATED for seed in seeds(lab)]


def _claim(name: str, metric: str, expected: float, unit: str, tolerance: float = 0.0, **more: str) -> Claim:
    source, confidence = more.pop("source", "bytes of K and V"), more.pop("confidence", "R")
    deviations = ("own-study", "equal-steps") if more.pop("runs", "") else ()
    return Claim(f"{NAME}/{name}", metric, expected, unit, tolerance, source, confidence, deviations)


def judge(lab: Lab) -> list[Result]:
    """Published ratios by arithmetic, then what runs."""
    by_hand = (
        (
            "gqa",
            "Llama-2-70B: 64 heads over its 8 KV heads",
            8,
            64 / (lookup("llama-2-70b").kv_spec("bf16", 1, 1).num_kv_heads),
        ),
        (
            "heads",
            "Llama-2-7B over Llama-3-8B: bytes a token",
            4,
            token_bytes("llama-2-7b", "bf16") / token_bytes("llama-3-8b", "bf16"),
        ),
        (
            "fp8",
            "Llama-3-8B: bytes a token in 16 bits over those in 8",
            2,
            token_bytes("llama-3-8b", "bf16") / token_bytes("llama-3-8b", "fp8"),
        ),
    )
    results = [exact(_claim(name, metric, expected, "times"), got) for name, metric, expected, got in by_hand]
    saved = 100 * (1 - token_bytes("deepseek-v2", "int6") / token_bytes("deepseek-67b", "bf16"))
    source = "DeepSeek-V2, abstract: the KV cache is 93.3 % smaller than DeepSeek 67B's (deployed in 6 bits an element)"
    results.append(
        exact(
            _claim("mla", "DeepSeek-V2's latent in 6 bits: KV saved", 93.3, "%", 0.05, source=source, confidence="A"),
            saved,
        )
    )
    for name, (few, many), expected, tolerance in (
        ("fp8", (SIMULATED[1], SIMULATED[2]), 2, 0.3),
        ("gqa", (SIMULATED[0], SIMULATED[1]), 4, 0.6),
    ):
        ratios = [b / a for a, b in zip(_batches(lab, few), _batches(lab, many), strict=True)]
        made = _claim(
            f"{name}/running",
            f"{' '.join(many)} over {' '.join(few)}: running requests",
            expected,
            "times",
            tolerance,
            runs="y",
        )
        results.append(over_seeds(made, ratios))
    return results


def _batches(lab: Lab, which: tuple[str, str]) -> list[float]:
    """Running requests at the busiest: means over the arrivals' window are means of the whole run here."""
    return lab.values([_case(lab, *which, seed) for seed in seeds(lab)], "mean_batch_size")


def tables(lab: Lab) -> Sequence[Table]:
    """Bytes, tokens, and what was simulated."""
    rows = []
    for model, dtype in LISTED:
        spec = lookup(model).kv_spec(dtype, 1, 1)
        running = None
        if (model, dtype) in SIMULATED:
            cases = [_case(lab, model, dtype, seed) for seed in seeds(lab)]
            running = mean_of(lab, cases, "mean_batch_size")
        kind = "latent" if spec.kind == "mla" else f"{spec.num_kv_heads} KV heads"
        rows.append(
            (model, kind, dtype, spec.layers_per_rank, spec.bytes_per_token, KV_BYTES // spec.bytes_per_token, running)
        )
    heads = ("model", "attention", "dtype", "layers", "bytes a token", "tokens in 4 GiB", "running requests")
    return [Table(f"{NAME}/models", "KV of a token, and what 4 GiB of it hold", heads, tuple(rows))]


def pictures(lab: Lab) -> list[Picture]:
    """Running requests in the same memory."""
    cases = [
        ({"model": model, "dtype": dtype, "run": f"{model}\n{dtype}"}, _case(lab, model, dtype, seed))
        for model, dtype in SIMULATED
        for seed in seeds(lab)
    ]
    frame = frame_of(lab, cases, ("mean_batch_size",)).assign(shown="running requests")

    def draw(canvas: Canvas) -> pd.DataFrame:
        from experiments.figures.study_curves import grouped_bars

        ax = canvas.subplots()
        return grouped_bars(frame, ax, "run", "mean_batch_size", "shown", "running requests", ("paged",))

    many = NUM_QUICK_REQUESTS if lab.quick else NUM_REQUESTS
    said = f"n = {many} a run, all waiting", "ShareGPT's lengths", "4 GiB of KV, paged", "step model paper-13b for all"
    claim = (
        "The same memory holds four times the requests where four query heads share a KV head, and twice as many "
        "again where a number takes 8 bits in place of 16." + bars_said(frame)
    )
    return [Picture(NAME, "What heads and types are worth in requests", claim, caption_of(lab, NAME, *said), draw, 2.6)]


KV_CAPACITY: Final = Experiment(NAME, "What heads and types are worth in requests", judge, runs, tables)
