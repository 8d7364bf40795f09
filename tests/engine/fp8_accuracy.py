"""What an FP8 KV cache does to a real model's logits and choices: SmolLM2-135M on the CPU, in float32 but for K and V.

    python -m tests.engine.fp8_accuracy

Logits of texts whose every token is given: position by position, over K and V as they are and as FP8 keeps them. Error:
|| logits - float32's || / || float32's ||, both less their mean, which softmax does not see. Agreement: positions with
the same likeliest token. KL: of float32's distribution from FP8's, nats. Scales are fitted to the first text only.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.attention.builders import MetadataBuilder
from engine.model.decoder import Decoder
from engine.worker.engine import Engine, EngineConfig
from engine.worker.kv_memory import KVMemory
from engine.worker.kv_storage import storage_of
from tests.engine.model import smollm2

SCALES = ("unit", "per-tensor", "per-head")
HISTORY = """The history of computing is longer than that of computers: people have used devices to help them count
since the abacus, and astronomers had their tables computed by hand for centuries before a machine did it."""
PROGRAM = """def quicksort(items):
    if len(items) < 2:
        return items
    pivot, *rest = items
    low = [x for x in rest if x < pivot]
    high = [x for x in rest if x >= pivot]
    return quicksort(low) + [pivot] + quicksort(high)
"""
BIOLOGY = """Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. It takes place in the
chloroplasts of plants and algae, whose chlorophyll absorbs red and blue light and reflects green."""
TEXTS = (HISTORY, PROGRAM, BIOLOGY, " ".join(map(str, range(1, 33))))


class Accuracy(NamedTuple):
    """Over all positions of all texts."""

    scales: str
    positions: int
    error: float
    largest_error: float
    """Of a position."""
    agreement: float
    divergence: float


@torch.inference_mode()
def logits_of(engine: Engine, tokens: Sequence[int], *, block_size: int = 16) -> torch.Tensor:
    """[T, V] of one sequence, in one step, which reads what it has written."""
    shape, count = engine.architecture, len(tokens)
    blocks = -(-count // block_size)
    kv = KVMemory(
        engine.backend,
        [shape.layer_config(layer) for layer in range(shape.num_layers)],
        num_blocks=blocks,
        block_size=block_size,
        dtype=engine.storage.dtype,
        device=engine.device,
        layout=engine.layout,
        scales=engine.storage.scales,
    )
    step = MetadataBuilder(block_size, engine.device).build([count], [count], [list(range(blocks))])
    decoder = Decoder(shape, engine.model.weights, engine.ops(), kv, max_tokens=count, max_num_seqs=count)
    ids, positions = torch.tensor(list(tokens), device=engine.device), torch.arange(count, device=engine.device)
    return decoder.logits(decoder.forward(ids, positions, step.slot_mapping, step)).float().clone()


def with_fp8(engine: Engine, scales: str, fitted_to: Sequence[Sequence[int]]) -> Engine:
    """The same engine, weights and all, over an FP8 cache."""
    made = copy.copy(engine)
    config = EngineConfig(engine.config.model, kv_cache_dtype="fp8", kv_scales=scales)
    made.storage = storage_of(config, engine.architecture, engine.backend, engine.dtype, engine.device)
    made.storage.fit(engine, fitted_to)
    return made


def accuracy(engine: Engine, texts: Sequence[Sequence[int]], scales: str) -> Accuracy:
    """Of FP8 against what the engine stores, over texts of token ids."""
    narrow = with_fp8(engine, scales, texts[:1])
    pairs = [(logits_of(engine, text), logits_of(narrow, text)) for text in texts]
    wide, fp8 = (torch.cat(part) for part in zip(*pairs, strict=True))
    wide, fp8 = wide - wide.mean(1, keepdim=True), fp8 - fp8.mean(1, keepdim=True)
    errors = (fp8 - wide).norm(dim=1) / wide.norm(dim=1)
    divergence = torch.nn.functional.kl_div(
        fp8.log_softmax(1), wide.log_softmax(1), reduction="batchmean", log_target=True
    )
    same = (wide.argmax(1) == fp8.argmax(1)).float().mean()
    whole = (fp8 - wide).norm() / wide.norm()
    return Accuracy(scales, len(wide), float(whole), float(errors.max()), float(same), float(divergence))


def smollm2_accuracy() -> list[Accuracy]:
    """One for each way to set scales."""
    path = smollm2.find()
    assert path is not None, smollm2.WHY_NOT
    engine = Engine(EngineConfig(str(path), max_num_seqs=4, max_num_batched_tokens=256, max_model_len=256))
    tokenizer = engine.model.tokenizer
    assert tokenizer is not None
    texts = [tokenizer.encode(text) for text in TEXTS]
    return [accuracy(engine, texts, scales) for scales in SCALES]


def main() -> int:
    """Prints a table; 3 where the model is not at hand."""
    if smollm2.find() is None:
        print(smollm2.WHY_NOT)  # noqa: T201
        return 3
    print(f"{'scales':<12} positions  error   largest  agreement  KL")  # noqa: T201
    for row in smollm2_accuracy():
        print(  # noqa: T201
            f"{row.scales:<12} {row.positions:>9}  {row.error:.4f}  {row.largest_error:.4f}   {row.agreement:>8.1%}  "
            f"{row.divergence:.2e}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
