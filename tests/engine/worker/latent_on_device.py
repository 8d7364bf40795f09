"""Models that cache latents on the device at hand: transformers' logits by every backend, and the time of a step.

    python -m tests.engine.worker.latent_on_device            # tables to standard output, as CSV to $OUT
    python -m tests.engine.worker.latent_on_device --cpu      # small shapes on the CPU: does it run

First the tiny models of `test_gpu_latent` by every backend that keeps latents and that this machine can run, beside
them the distance of transformers' own bfloat16. Then, by the device's own backend with random weights: DeepSeek-V2-Lite
with dense layers throughout (16 heads), and the three leading layers of DeepSeek-V3, which are dense (128 heads). What
fails is a row, and the rest goes on. Exit code 4: a failure, or a logit beyond its bound; 6: no device.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.core import catalogue
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.worker.engine import Engine, EngineConfig
from tests.engine.worker import latent

BLOCK_SIZE, OUTPUTS = 64, 24
PS_PER_US = 1_000_000
Row = dict[str, Any]
MODELS: dict[str, tuple[str, Row, list[tuple[int, int]]]] = {
    "v2-lite-dense": (
        "deepseek-v2-lite",
        {"first_k_dense_replace": 27},
        [(1, 4096), (16, 4096), (64, 4096), (128, 1024)],
    ),
    "v3-first-3-layers": (
        "deepseek-v3",
        {"num_hidden_layers": 3, "quantization_config": None},
        [(1, 4096), (16, 4096), (64, 4096)],
    ),
}
"""Name: catalogue entry, what is changed in it, and (sequences, prompt tokens) of each batch."""
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 300}
SMALL_BATCHES = [(1, 60), (4, 20)]


def compared(device: str) -> Iterator[Row]:
    """How far the logits of each model are from transformers', by backend and block size."""
    sizes = latent.REAL if device == "cuda" else {}
    texts = latent.texts_of(12 if device == "cuda" else 5)
    for name in ("deepseek-v3", "deepseek-v2"):
        with tempfile.TemporaryDirectory() as folder:
            model = latent.saved(Path(folder), name, **sizes)
            for backend, reason in latent.latent_backends().items():
                if reason or (device == "cpu" and backend != "reference-mla"):
                    yield {"model": name, "backend": backend, "skipped": reason or "only the specification on a CPU"}
                    continue
                for dtype in latent.dtypes_of(backend):
                    what = {"model": name, "backend": backend, "dtype": str(dtype).removeprefix("torch.")}
                    yield from guarded(what, _compared_by(backend, dtype, name, Path(folder), model, texts, device))


def _compared_by(
    backend: str,
    dtype: torch.dtype,
    name: str,
    folder: Path,
    model: Any,
    texts: Sequence[tuple[latent.Text, int]],
    device: str,
) -> Iterator[Row]:
    expected = latent.expected(latent.rounded(model, dtype), texts)
    own = None if dtype == torch.float32 else latent.expected(latent.computed_in(model, dtype), texts)
    engine = latent.engine_of(folder, device=device, attention=backend, dtype=str(dtype).removeprefix("torch."))
    for size in latent.sizes_of(backend):
        served = latent.forced(engine, texts, block_size=size, num_slots=320)
        distance = latent.distance(served.logits, expected, dtype)
        yield {
            "model": name,
            "backend": backend,
            "dtype": str(dtype).removeprefix("torch."),
            "block_size": size,
            "graphs": engine.provenance["graphs"],
            "as_captured": latent.captured(engine, served),
            "distance": distance,
            "bound": latent.BOUNDS[dtype],
            "transformers": None if own is None else latent.distance(own, expected, dtype),
            "within": distance <= latent.BOUNDS[dtype],
        }


def timed(device: str) -> Iterator[Row]:
    """Microseconds of a decode step, and prompt tokens a second, of each model and batch."""
    for name, (entry, change, batches) in MODELS.items():
        own = catalogue.entry(entry)[1]
        assert own is not None
        config = {**own, **change}
        if device == "cpu":
            config, batches = {**config, **SMALL, "first_k_dense_replace": 2}, SMALL_BATCHES
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            yield from guarded({"model": name}, _timed_by(name, folder, device, batches))


def _engine(folder: str, device: str, batches: Sequence[tuple[int, int]]) -> Engine:
    longest = max(prompt for _, prompt in batches) + OUTPUTS
    limits = {
        "max_num_seqs": max(count for count, _ in batches),
        "max_num_batched_tokens": 4096 if device == "cuda" else 64,
        "max_model_len": -(-longest // BLOCK_SIZE) * BLOCK_SIZE,
    }
    return Engine(EngineConfig(folder, device=device, weights_seed=0, **limits))


def _timed_by(name: str, folder: str, device: str, batches: Sequence[tuple[int, int]]) -> Iterator[Row]:
    began = time.perf_counter()
    engine = _engine(folder, device, batches)
    limits, vocab = engine.limits, engine.architecture.vocab_size
    most = max(count * -(-(prompt + OUTPUTS) // BLOCK_SIZE) for count, prompt in batches)
    llm = LLM(
        engine, block_size=BLOCK_SIZE, num_blocks=most, enable_prefix_caching=False,
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    ready_s = time.perf_counter() - began
    for count, prompt in batches:
        prompts = torch.randint(vocab, (count, prompt), generator=generator).tolist()
        llm.generate(prompts, SamplingParams(max_tokens=OUTPUTS, temperature=0, ignore_eos=True))
        steps = llm.executor.steps
        pure = [one for one in steps if one.num_decodes and not one.num_chunk_tokens]
        decoding = max(one.num_decodes for one in pure)  # the first may have ended before the last prompt was read
        decodes = [one.device_ps for one in pure if one.num_decodes == decoding]
        full = [one for one in steps if one.num_chunk_tokens >= limits.max_num_batched_tokens - count]
        yield {
            "model": name,
            "backend": engine.backend.get_name(),
            "sequences": count,
            "decoding": decoding,
            "prompt_tokens": prompt,
            "block_bytes": engine.block_bytes(BLOCK_SIZE),
            "ready_s": ready_s,
            "decode_steps": len(decodes),
            "decode_us": statistics.median(decodes) / PS_PER_US,
            "decode_tokens_per_s": decoding * 1e12 / statistics.median(decodes),
            "prefill_tokens_per_s": _prefill_rate(full),
        }
    engine.release()


def _prefill_rate(full: Sequence[Any]) -> float | None:
    """Of the steps that were full of prompt tokens; None where there is none."""
    seconds = sum(one.device_ps for one in full) / 1e12
    return sum(one.num_chunk_tokens for one in full) / seconds if full else None


def guarded(what: Row, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows; a failure is one of them, so that the others are still measured."""
    try:
        yield from rows
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        yield {**what, "failed": f"{type(error).__name__}: {error}"}


def written(name: str, rows: Iterator[Row]) -> list[Row]:
    """Printed as they come, and kept under $OUT."""
    found = []
    for row in rows:
        print(*(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()))  # noqa: T201
        sys.stdout.flush()
        found.append(row)
    if "OUT" in os.environ:
        with (Path(os.environ["OUT"]) / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in found for key in row)))
            writer.writeheader()
            writer.writerows(found)
    return found


def main(argv: Sequence[str]) -> int:
    """4 for a logit beyond its bound, 6 without a device."""
    device = "cpu" if "--cpu" in argv else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: --cpu shows whether it runs", file=sys.stderr)  # noqa: T201
        return 6
    logits = [row for row in written("latent_logits", compared(device)) if "skipped" not in row]
    wrong = [row for row in logits if "failed" in row or not (row["within"] and row["as_captured"])]
    steps: list[Row] = []
    if device == "cuda" and not any(name.startswith("triton") for name in latent.latent_backends()):
        print("no backend of Triton's in the registry keeps latents: nothing is timed")  # noqa: T201
    else:
        steps = written("latent_steps", timed(device))
    print(f"{len(logits) - len(wrong)} of {len(logits)} logits tables within their bound")  # noqa: T201
    return 4 if wrong or any("failed" in row for row in steps) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
