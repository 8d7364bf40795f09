"""A real language model under every allocator, block size, layout and policy: the same greedy tokens.

    python -m tests.engine.smollm2_matrix          # the pairs that the test runs
    python -m tests.engine.smollm2_matrix --all    # the whole product, an hour on two cores

What is right is transformers' greedy continuation with the same weights. Another token is right only where its two best
logits are within 1e-3 of each other.
"""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.worker.engine import Engine, EngineConfig, layout_of
from tests.engine.attention.kernels.pairwise import pairwise
from tests.engine.model import smollm2

NUM_TOKENS, LONGEST, TIE = 12, 64, 1e-3
SHARED = "You are a careful assistant. Answer briefly and to the point.\n"
PROMPTS = (
    f"{SHARED}The capital of France is",
    f"{SHARED}The largest planet of the solar system is",
    "def fibonacci(n):\n",
    f"{SHARED}The capital of France is",
)
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
FACTORS: dict[str, Sequence[Any]] = {
    "allocator": ("paged", "orca-max", "orca-pow2", "orca-oracle"),
    "block_size": (1, 2, 4, 8, 16, 32, 64, 128),
    "layout": ("kv-first", "block-first", "interleaved"),
    "chunked": (True, False),
    "tight": (True, False),
    "caching": (True, False),
}
IN_CI = {**FACTORS, "block_size": (1, 4, 16, 128)}


@dataclass
class Expected:
    """transformers' tokens, and how far the best logit is ahead of the second at each."""

    tokens: list[list[int]]
    margins: list[list[float]]

    def check(self, outputs: Sequence[Sequence[int]]) -> None:
        """AssertionError at the first token that is not the expected one nor nearly as likely."""
        for row, got in enumerate(outputs):
            assert len(got) == NUM_TOKENS
            for place, (token, wanted) in enumerate(zip(got, self.tokens[row], strict=True)):
                if token != wanted:
                    margin = self.margins[row][place]
                    assert margin < TIE, f"prompt {row}: token {place} is {token}, not {wanted} ({margin:.4f} ahead)"
                    break


def engines() -> dict[str, Engine]:
    """The model on the CPU, in float32: an engine a layout, all over the same weights."""
    path = smollm2.find()
    assert path is not None, smollm2.WHY_NOT
    first = Engine(EngineConfig(str(path), max_num_seqs=4, max_num_batched_tokens=256, max_model_len=LONGEST))
    made = {}
    for layout in FACTORS["layout"]:
        made[layout] = copy.copy(first)
        made[layout].layout = layout_of(layout, first.backend)
    return made


@torch.inference_mode()
def expected(served: Engine) -> Expected:
    """Of transformers, with the engine's own weights."""
    model = smollm2.as_hugging_face(served.model)
    found = Expected([], [])
    for prompt in PROMPTS:
        ids = torch.tensor([served.model.tokenizer.encode(prompt)])
        made = model.generate(
            ids, do_sample=False, max_new_tokens=NUM_TOKENS, return_dict_in_generate=True, output_logits=True
        )
        best = torch.cat(made.logits).topk(2).values
        found.tokens.append(made.sequences[0, ids.shape[1] :].tolist())
        found.margins.append((best[:, 0] - best[:, 1]).tolist())
    return found


def serve(over: Mapping[str, Engine], row: Mapping[str, Any]) -> tuple[list[list[int]], int]:
    """Greedy tokens of one setting, and preemptions."""
    size = row["block_size"]
    # Tight: room for one of the longest sequences; what paging admits beyond that is preempted.
    slots = max(size, LONGEST if row["tight"] else 4 * LONGEST)
    llm = LLM(
        over[row["layout"]],
        allocator=row["allocator"],
        block_size=size,
        num_blocks=slots // size,
        enable_prefix_caching=row["caching"],
        enable_chunked_prefill=row["chunked"],
        max_num_batched_tokens=16 if row["chunked"] else 256,
    )
    answers = llm.generate(list(PROMPTS), PARAMS)
    return [answer.outputs[0].token_ids for answer in answers], llm.num_preemptions


def main(argv: Sequence[str]) -> int:
    """Prints a line a setting; 1 if any is wrong."""
    over = engines()
    right = expected(over["kv-first"])
    whole = (dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values()))
    wrong = preemptions = count = 0
    for row in whole if "--all" in argv else pairwise(IN_CI):
        began, verdict = time.perf_counter(), "same"
        tokens, preempted = serve(over, row)
        try:
            right.check(tokens)
        except AssertionError as error:
            verdict, wrong = f"WRONG: {error}", wrong + 1
        preemptions, count = preemptions + preempted, count + 1
        print(*row.values(), f"{preempted} preemptions, {time.perf_counter() - began:.1f} s:", verdict, flush=True)  # noqa: T201
    print(f"{count} settings, {wrong} wrong, {preemptions} preemptions")  # noqa: T201
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
