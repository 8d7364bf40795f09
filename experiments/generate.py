"""The verb `generate`: texts, or token ids, continued by a real model over any allocator."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from experiments import exits
from experiments.exits import DeviceMissing, UsageError
from experiments.whole import MaybeWhole, Whole

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.outputs import MemoryUse, RequestOutput
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
    n: Annotated[Whole, _option(_SAMPLING, "Completions of each prompt [1].", "-n", "--n")] = 1
    samples: Annotated[
        str, _option(_SAMPLING, "fork: one prompt, blocks shared and copied on write; requests: n prompts [fork].")
    ] = "fork"
    beam_width: Annotated[MaybeWhole, _option(_SAMPLING, "Search with so many beams instead of sampling.")] = None
    length_penalty: Annotated[float, _option(_SAMPLING, "Of a search: above 0 favours long completions [1].")] = 1.0
    early_stopping: Annotated[
        str, _option(_SAMPLING, "Of a search: yes: over with as many completions as beams; no; never [no].")
    ] = "no"
    ignore_eos: Annotated[bool, _option(_SAMPLING, "Go on behind the model's end-of-sequence token.")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """What runs, where, and how its memory is managed."""

    backend: Annotated[str, _option(_MEMORY, "cpu or gpu [gpu if there is one, else cpu].")] = "auto"
    allocator: Annotated[str, _option(_MEMORY, "As for compare [paged].")] = "paged"
    attention: Annotated[
        str, _option(_MEMORY, "Attention back end, see `pagelab backends` [cpu: reference; gpu: triton].")
    ] = "auto"
    kernel: Annotated[str, _option(_MEMORY, "paged or contiguous [paged].")] = "paged"
    block_size: Annotated[MaybeWhole, _option(_MEMORY, "Tokens a block [the attention backend's: 16].")] = None
    num_blocks: Annotated[MaybeWhole, _option(_MEMORY, "Pins the pool [what the device has left].")] = None
    max_model_len: Annotated[MaybeWhole, _option(_MEMORY, "Longest prompt + output [the model's].")] = None
    max_num_seqs: Annotated[Whole, _option(_MEMORY, "Most running requests [64].")] = 64
    max_num_batched_tokens: Annotated[Whole, _option(_MEMORY, "Most tokens in a step [2048].")] = 2048
    preemption: Annotated[
        str, _option(_MEMORY, "Of who gives way: recompute, swap, or auto (swap groups only) [recompute].")
    ] = "recompute"
    host_blocks: Annotated[MaybeWhole, _option(_MEMORY, "Blocks of host memory to swap to [as --swap-gib].")] = None
    swap_gib: Annotated[
        float | None, _option(_MEMORY, "GiB of host memory to swap to [as large as the pool, at most 4].")
    ] = None
    tensor_parallel_size: Annotated[
        Whole, _option(_MEMORY, "Ranks, each a process with a GPU of its own [1].", "--tensor-parallel-size", "--tp")
    ] = 1
    dtype: Annotated[str, _option(_MEMORY, "float32, float16 or bfloat16 [auto].")] = "auto"
    kv_cache_dtype: Annotated[
        str, _option(_MEMORY, "Storage type of K and V: auto, or fp8 [auto].", "--kv-cache-dtype", "--kv-dtype")
    ] = "auto"
    kv_scales: Annotated[
        str, _option(_MEMORY, "Of fp8: unit, per-head or per-tensor (fitted to the prompts), or a JSON file [unit].")
    ] = "unit"
    weights_seed: Annotated[MaybeWhole, _option(_MEMORY, "Random weights from this seed [the model's own].")] = None


def generate_verb(
    model: str, prompts: Sequence[str], *, token_ids: bool, sampling: SamplingFlags, flags: ModelFlags, as_json: bool
) -> int:
    """Prints a completion a prompt; everything that is wrong with a call is the user's, before anything runs."""
    if not prompts:
        raise UsageError("generate needs at least one prompt")
    from experiments.backends import DEVICES, need_torch

    need_torch("generate")
    from experiments.ranks import broken_by_a_rank

    if flags.backend not in (*DEVICES, "auto"):
        raise UsageError(f"--backend knows {', '.join(DEVICES)}, got {flags.backend!r}")
    _check(sampling, flags)
    try:
        given = [_ids(text) for text in prompts] if token_ids else list(prompts)
        params = _params(sampling)
        with broken_by_a_rank(), _llm(model, flags, sampling.seed) as llm:
            began = time.perf_counter()
            answers = llm.generate(given, params, **_how(sampling))
            took = time.perf_counter() - began
    except (UsageError, DeviceMissing):
        raise
    except ValueError as error:
        raise UsageError(_by_flag(str(error))) from error
    _print(llm, answers, took, as_json=as_json)
    return exits.OK


def _check(sampling: SamplingFlags, flags: ModelFlags) -> None:
    """UsageError, by the names of the options, for what cannot go together; the rest the engine refuses."""
    choices = {
        "samples": (sampling.samples, ("fork", "requests")),
        "early-stopping": (sampling.early_stopping, tuple(_EARLY)),
        "preemption": (flags.preemption, ("recompute", "swap", "auto")),
    }
    for name, (given, known) in choices.items():
        if given not in known:
            raise UsageError(f"--{name} knows {', '.join(known)}, got {given!r}")
    if sampling.beam_width is not None and sampling.temperature != 0:
        raise UsageError(
            f"--beam-width searches for the likeliest completions and draws nothing: leave --temperature "
            f"{sampling.temperature:g} out, or ask for -n {sampling.beam_width} samples"
        )
    if sampling.beam_width is not None and sampling.n != 1:
        raise UsageError(f"--beam-width {sampling.beam_width} gives as many completions: leave -n {sampling.n} out")


def _by_flag(message: str) -> str:
    """The engine's complaint about an option, `kv_scales: ...`, by the flag's name: `--kv-scales: ...`."""
    option = re.match(r"\w+(?=[:=])", message)
    if option is None or option[0] not in {one.name for kind in (SamplingFlags, ModelFlags) for one in fields(kind)}:
        return message
    return f"--{option[0].replace('_', '-')}{message[option.end() :]}"


_EARLY: dict[str, bool | Literal["never"]] = {"yes": True, "no": False, "never": "never"}


def _how(flags: SamplingFlags) -> dict[str, Any]:
    """What `LLM.generate` is told beside the parameters of sampling."""
    return {
        "samples": flags.samples,
        "beam_width": flags.beam_width,
        "length_penalty": flags.length_penalty,
        "early_stopping": _EARLY[flags.early_stopping],
    }


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
    from experiments.ranks import need_devices

    backend = flags.backend if flags.backend != "auto" else _backend_here()
    need_device(backend)
    need_devices(backend, flags.tensor_parallel_size)
    path = Path(model)
    return LLM(
        str(path.parent) if path.name == "config.json" and path.is_file() else model,
        device=DEVICES[backend],
        allocator=flags.allocator,
        attention=flags.attention,
        kernel=flags.kernel,  # type: ignore[arg-type]
        block_size=flags.block_size,
        num_blocks=flags.num_blocks,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        preemption=flags.preemption,  # type: ignore[arg-type]
        host_blocks=flags.host_blocks,
        swap_gib=flags.swap_gib,
        tensor_parallel_size=flags.tensor_parallel_size,
        dtype=flags.dtype,
        kv_cache_dtype=flags.kv_cache_dtype,
        kv_scales=flags.kv_scales,
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
        memory = {**asdict(llm.memory_use), "host_blocks": llm.pool.host_blocks}
        answered = [asdict(answer) for answer in answers]
        engine = llm.engine.provenance
        say_json({"engine": engine, "pool": pool, "memory": memory, "answers": answered, "seconds": took})
        return
    for number, answer in enumerate(answers):
        for one in answer.outputs:
            score = "" if one.score is None else f", score {one.score:.4f}"
            head = f"[{number}.{one.index}] ({one.finish_reason}, {len(one.token_ids)} tokens{score})"
            text = one.text if llm.engine.model.tokenizer is not None else " ".join(map(str, one.token_ids))
            say(f"{head} {text}")
    where = f"attention {llm.engine.backend.get_name()} on {llm.engine.device.type}"
    Talk().note(f"{count} tokens in {took:.2f} s by {where}, {_told(llm.memory_use)}")


def _told(use: MemoryUse) -> str:
    """What happened to memory, as far as anything did."""
    told = [f"{use.num_preemptions} preemptions"]
    if use.most_shared_blocks:
        told.append(f"up to {use.most_shared_blocks} blocks saved by sharing")
    if use.copied_blocks:
        told.append(f"{use.copied_blocks} blocks copied")
    if use.swapped_out_blocks:
        told.append(f"{use.swapped_out_blocks} swapped out and {use.swapped_in_blocks} in")
    return ", ".join(told)
