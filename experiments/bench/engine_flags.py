"""The options of `bench engine`: what `experiments.bench.engine_run.EngineWanted` is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from experiments.whole import MaybeWhole, Whole


def _option(text: str = "", *names: str) -> Any:
    return Parameter(help=text, name=names or None)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """A closed batch, and the engine that serves it."""

    model: Annotated[str, _option("Catalogue name, Hugging Face folder or .gguf file.", "-m", "--model")] = "llama-3-8b"
    device: Annotated[str, _option("cuda or cpu.")] = "cuda"
    dtype: Annotated[str, _option("float32, float16, bfloat16; auto: float32 on a CPU, the model's on a GPU.")] = "auto"
    attention: Annotated[str, _option("Attention back end; auto: reference on a CPU, triton on a GPU.")] = "auto"
    layout: Annotated[str | None, _option("KV layout by name [the back end's own].")] = None
    allocator: Annotated[str, _option("Who hands out the blocks.")] = "paged"
    kernel: Annotated[
        Literal["paged", "contiguous"], _option("contiguous: no block table, where an allocator's blocks are adjacent.")
    ] = "paged"
    block_size: Whole = 16
    prefix_caching: Annotated[bool, Parameter(negative="--no-prefix-caching")] = False
    num_requests: Whole = 256
    input_len: Whole = 512
    output_len: Whole = 128
    max_num_seqs: Whole = 256
    max_num_batched_tokens: Whole = 8192
    max_model_len: Annotated[MaybeWhole, _option("Longest request [input_len + output_len].")] = None
    kv_tokens: Annotated[MaybeWhole, _option("Tokens of the pool [all requests at their longest].")] = None
    num_runs: Annotated[Whole, _option("The best by wall clock is reported, all are kept.")] = 3
    tensor_parallel_size: Annotated[
        Whole, _option("Ranks, each a process with a GPU of its own.", "--tensor-parallel-size", "--tp")
    ] = 1
    graphs: Annotated[bool, Parameter(negative="--no-graphs", help="Decode steps as CUDA graphs.")] = True
    shared_prefix_kernel: Annotated[
        bool,
        Parameter(
            negative="--no-shared-prefix-kernel", help="Decodes take what block tables have in common once, if it pays."
        ),
    ] = True
    profile: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Also trace a few steps: kernels by name."),
    ] = False
    seed: Annotated[Whole, _option("Of prompts and random weights.")] = 0
