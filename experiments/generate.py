"""The verb `generate`: texts, or token ids, continued by a real model over any allocator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from experiments import exits
from experiments.exits import DeviceMissing, UsageError
from experiments.whole import MaybeWhole, Whole

if TYPE_CHECKING:
    from engine.llm import LLM, RequestOutput
    from engine.sampling_params import SamplingParams

_SAMPLING = Group("Sampling", sort_key=1)
_MEMORY = Group("Model and memory", sort_key=2)


def _option(group: Group, text: str, *names: str) -> Any:
    return Parameter(group=group, help=text, name=names or None, show_default=False, negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen, and when a completion ends."""

    max_tokens: Annotated[Whole, _option(_SAMPLING, "Tokens at most [64].")] = 64
    temperature: Annotated[float, _option(_SAMPLING, "0: always the likeliest token [0].")] = 0.0
    top_k: Annotated[Whole, _option(_SAMPLING, "Only the k likeliest tokens; 0: all [0].")] = 0
    top_p: Annotated[float, _option(_SAMPLING, "Only the likeliest that together have this probability [1].")] = 1.0
    seed: Annotated[Whole, _option(_SAMPLING, "Of what is drawn: the same seed, the same tokens [0].")] = 0
    stop: Annotated[tuple[str, ...], _option(_SAMPLING, "A text that ends a completion; may be repeated.")] = ()
    n: Annotated[Whole, _option(_SAMPLING, "Completions of each prompt [1].", "-n")] = 1
    ignore_eos: Annotated[bool, _option(_SAMPLING, "Go on behind the model's end-of-sequence token.")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """What runs, where, and how its memory is managed."""

    backend: Annotated[str, _option(_MEMORY, "cpu or gpu [gpu if there is one, else cpu].")] = "auto"
    allocator: Annotated[str, _option(_MEMORY, "As for compare [paged].")] = "paged"
    kernel: Annotated[str, _option(_MEMORY, "paged or contiguous [paged].")] = "paged"
    block_size: Annotated[MaybeWhole, _option(_MEMORY, "Tokens a block [the attention backend's: 16].")] = None
    num_blocks: Annotated[MaybeWhole, _option(_MEMORY, "Pins the pool [what the device has left].")] = None
    max_model_len: Annotated[MaybeWhole, _option(_MEMORY, "Longest prompt + output [the model's].")] = None
    max_num_seqs: Annotated[Whole, _option(_MEMORY, "Most running requests [64].")] = 64
    max_num_batched_tokens: Annotated[Whole, _option(_MEMORY, "Most tokens in a step [2048].")] = 2048
    dtype: Annotated[str, _option(_MEMORY, "float32, float16 or bfloat16 [auto].")] = "auto"
    weights_seed: Annotated[MaybeWhole, _option(_MEMORY, "Random weights from this seed [the model's own].")] = None


def generate_verb(
    model: str, prompts: Sequence[str], *, token_ids: bool, sampling: SamplingFlags, flags: ModelFlags, as_json: bool
) -> int:
    """Prints a completion a prompt; everything that is wrong with a call is the user's, before anything runs."""
    if not prompts:
        raise UsageError("generate needs at least one prompt")
    from experiments.backends import DEVICES, need_torch

    need_torch("generate")
    if flags.backend not in (*DEVICES, "auto"):
        raise UsageError(f"--backend knows {', '.join(DEVICES)}, got {flags.backend!r}")
    try:
        given = [_ids(text) for text in prompts] if token_ids else list(prompts)
        params = _params(sampling)
        llm = _llm(model, flags, sampling.seed)
        began = time.perf_counter()
        answers = llm.generate(given, params)
        took = time.perf_counter() - began
    except (UsageError, DeviceMissing):
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    _print(llm, answers, took, as_json=as_json)
    return exits.OK


def _params(flags: SamplingFlags) -> SamplingParams:
    from engine.sampling_params import SamplingParams

    return SamplingParams(
        max_tokens=flags.max_tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
        stop=flags.stop,
        n=flags.n,
        ignore_eos=flags.ignore_eos,
    )


def _llm(model: str, flags: ModelFlags, seed: int) -> LLM:
    """DeviceMissing where a GPU is asked for and none is there."""
    from engine.llm import LLM
    from experiments.backends import DEVICES, need_device

    backend = flags.backend if flags.backend != "auto" else _backend_here()
    need_device(backend)
    path = Path(model)
    return LLM(
        str(path.parent) if path.name == "config.json" and path.is_file() else model,
        device=DEVICES[backend],
        allocator=flags.allocator,
        kernel=flags.kernel,  # type: ignore[arg-type]
        block_size=flags.block_size,
        num_blocks=flags.num_blocks,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        dtype=flags.dtype,
        weights_seed=flags.weights_seed,
        seed=seed,
    )


def _backend_here() -> str:
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"


def _ids(text: str) -> list[int]:
    """`1,2,3` as token ids."""
    try:
        return [int(part) for part in text.replace(" ", ",").split(",") if part]
    except ValueError:
        raise UsageError(f"--token-ids: a prompt is a comma list of whole numbers, got {text!r}") from None


def _print(llm: LLM, answers: Sequence[RequestOutput], took: float, *, as_json: bool) -> None:
    from experiments.console import Talk, say, say_json

    count = sum(len(one.token_ids) for answer in answers for one in answer.outputs)
    if as_json:
        pool = {"allocator": llm.allocator_name, "block_size": llm.pool.block_size, "why": llm.block_size_reason}
        pool["num_blocks"] = llm.pool.capacity_blocks
        pool["budget"] = llm.budget and asdict(llm.budget)
        answered = [asdict(answer) for answer in answers]
        say_json({"engine": llm.engine.provenance, "pool": pool, "answers": answered, "seconds": took})
        return
    for number, answer in enumerate(answers):
        for one in answer.outputs:
            head = f"[{number}.{one.index}] ({one.finish_reason}, {len(one.token_ids)} tokens)"
            text = one.text if llm.engine.model.tokenizer is not None else " ".join(map(str, one.token_ids))
            say(f"{head} {text}")
    Talk().note(f"{count} tokens in {took:.2f} s, {llm.num_preemptions} preemptions")
