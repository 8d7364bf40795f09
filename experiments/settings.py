"""The configuration of an experiment: what a TOML file may say, section by section. Unknown keys are refused.

A key that is left out takes its default in `experiments.resolve`: from the workload, the preset, the model or the GPU.
Times are in seconds, sizes in bytes or tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from experiments.quantities import (
    Bytes,
    Count,
    Counts,
    Delay,
    End,
    Fraction,
    HostBytes,
    Names,
    PageSizes,
    PoolBytes,
    Rate,
    Window,
)

Rule = Literal["default", "sosp23", "chapter-gib", "chapter-gb", "chapter-mixed"]
Backend = Literal["sim", "cpu", "gpu"]
Kernel = Literal["paged", "contiguous", "both"]

SESSION_KEYS = ("turns", "think_time", "turn_lengths", "prefix_tokens", "num_prefixes", "max_session_tokens")
"""Fields of `workloads.Shape`, by the same names."""


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(Section):
    """What arrives: a trace file, or a workload by name."""

    name: str | None = None
    """Of `workloads.NAMED_TRACES` or `SESSION_TRACES`; the default is paper-fig2."""
    trace: str | None = None
    """Path of a trace file; in a configuration file, seen from that file's folder."""
    trace_format: str = "auto"
    on_bad_row: Literal["refuse", "drop"] = "refuse"
    trace_block_size: Count | None = None
    """Tokens per block id, where the file does not say."""
    recipe: str | None = None
    """Which turns of a ShareGPT talk are a request."""
    tokenizer: str | None = None
    """Counts texts: words, or the path of a tokenizer.json."""
    repeat: bool = False
    """Whether a file that holds fewer than `num_requests` goes round."""
    lengths: dict[str, str] = Field(default_factory=dict)
    """Real length lists for the named workloads: sharegpt or alpaca = a file with columns input_len, output_len."""
    num_requests: Count | None = None
    """The first so many."""
    request_rate: Rate | None = None
    """Requests per second: draws a named workload at this rate, stretches a file's arrivals to it."""
    time_scale: Rate | None = None
    """All arrival times times this; 2 is twice as slow."""
    num_samples: Count = 1
    """Sequences of each request that start from its prompt, all of its output length."""
    beam_width: Count | None = None
    """Beams of a search, in place of samples."""
    samples_as: Literal["fork", "requests"] = "fork"
    """A group that shares its prompt's blocks, or so many equal requests, which may share through the prefix cache."""
    max_concurrency: Count | None = None
    """Most requests inside at once: a closed loop, in which completions send the next."""
    turns: str | None = None
    """This and the next five are for session workloads: see `workloads.Shape`."""
    think_time: str | None = None
    turn_lengths: str | None = None
    prefix_tokens: int | None = Field(default=None, ge=0)
    num_prefixes: Count | None = None
    max_session_tokens: Count | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if self.name is not None and self.trace is not None:
            raise ValueError("name (--workload) and trace both say what arrives: keep one")
        if self.trace is not None and self.lengths:
            raise ValueError("lengths are for named workloads; a trace file has its own")
        if self.beam_width is not None and self.num_samples > 1:
            raise ValueError("num_samples and beam_width both say how many sequences there are: keep one")
        for key in ("trace_block_size", "recipe", "tokenizer", "repeat"):
            if self.trace is None and getattr(self, key):
                raise ValueError(f"{key} is for a trace file; name one with trace")
        for key in SESSION_KEYS:
            if self.trace is not None and getattr(self, key) is not None:
                raise ValueError(f"{key} is for a session workload (chat, few-shot); a trace file has its own requests")
        return self


class Model(Section):
    """What is served, and on what."""

    name: str | None = None
    """Catalogue name, Hugging Face id, or the path of a config.json."""
    gpu: str | None = None
    tp: Count = 1
    pp: Count = 1
    kv_cache_dtype: str | None = None
    max_model_len: Count | None = None


class Memory(Section):
    """The pool and who hands it out."""

    allocator: Names | None = None
    block_size: Counts | None = None
    page_bytes: PageSizes | None = None
    """Physical pages of the allocator `virtual`, whose block is a page of every tensor; nobody else reads it."""
    sweep: dict[str, Counts] | None = None
    """Block sizes of single allocators, in place of `block_size`."""
    num_blocks: Count | None = None
    kv_tokens: Count | None = None
    kv_bytes: PoolBytes | None = None
    capacity_rule: Rule | None = None
    gpu_memory_utilization: Fraction | None = None
    headroom_bytes: Bytes | None = None
    allow_unequal_pools: bool = False
    host_bytes: HostBytes | None = None
    """Host memory for sequences that are swapped out; `pool`: as much as KV memory."""
    host_blocks: Count | None = None
    """The same in blocks."""
    kernel: Kernel | None = None
    """Attention kernel of contiguous allocators on the real engine: with a block table, without, or each in turn."""

    @model_validator(mode="after")
    def _one_capacity(self) -> Memory:
        given = [k for k in ("num_blocks", "kv_tokens", "kv_bytes", "capacity_rule") if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both set the capacity: keep one")
        if self.host_bytes is not None and self.host_blocks is not None:
            raise ValueError("host_bytes and host_blocks both set host memory: keep one")
        terms = [k for k in ("gpu_memory_utilization", "headroom_bytes") if getattr(self, k) is not None]
        if terms and given and given[0] != "capacity_rule":
            raise ValueError(f"{given[0]} pins the capacity, {' and '.join(terms)} would size it: keep one")
        return self


class Scheduling(Section):
    """Limits and policies; each overrides the preset's."""

    preset: Literal["vllm", "sosp23"] | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"
    batching: Literal["iteration", "request"] = "iteration"
    """`request`: a batch runs until its longest request is done; for allocators that reserve everything at once."""
    preemption: Literal["recompute", "swap", "auto"] | None = None
    """What a victim's tokens become; `auto`: groups are swapped to host memory, single sequences computed again."""
    victim: Literal["last", "least-computed", "priority"] | None = None
    """Who gives way where memory runs out; by policy where it is left out."""
    too_long: Literal["reject", "truncate"] = "reject"
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    full_sequence_gate: bool | None = None
    watermark: Fraction | None = None
    freed_to: Literal["front", "back"] | None = None
    one_free_each: bool | None = None
    final_token_has_slot: bool | None = None


class Measuring(Section):
    """What a step costs, and what is measured when."""

    backend: Backend = "sim"
    """What runs a step: a model of its time, or the real engine on this machine's CPU or GPU."""
    step_model: str | None = None
    """linear:a,b,c,d, roofline, table:FILE, paper-13b (66b, 175b), or recorded:FILE, the steps of a real run."""
    executor: Literal["cost", "shadow", "torch-cpu"] = "cost"
    window_s: Window | None = None
    end_s: End | None = None
    record_steps: bool = False
    record_residency: bool = False
    """Whether the lives of cached blocks become columns of the summary."""
    record_sharing: bool = False
    """Whether what is shared does, where nothing but the prefix cache shares; groups and swaps are told anyway."""
    skip: bool = True
    map_frames: int | None = Field(default=None, ge=0, le=100_000)
    host_bytes_per_s: Rate | None = None
    """Between device and host, each way."""
    host_copy_s: Delay | None = None
    """Beside its bytes, for each copy call: K and V of each layer of each block have one."""
    copy_bytes_per_s: Rate | None = None
    """Of blocks that are copied on the device: bytes read, and as many written, in a second."""
    beam_spread: Delay | None = None
    """See `sim.ancestry`."""


class RealEngine(Section):
    """What the engine is made of, where `measure.backend` is cpu or gpu; refused elsewhere."""

    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    """What it computes in; auto: float32 on a CPU, the model's own on a GPU."""
    attention: str | None = None
    """Attention back end by name; auto: reference on a CPU, triton on a GPU."""
    layout: str | None = None
    """KV layout by name; none: the back end's own."""
    weights_seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Of random weights, in place of the model's own; a catalogue name has no others."""
    graphs: bool | None = None
    """Whether decode steps are replayed as CUDA graphs."""
    shared_prefix_kernel: bool | None = None
    """Whether decodes take what their block tables have in common once for all rows, where it pays [yes]."""


class Replicas(Section):
    """Several replicas behind a router; see `sim.router` for the rules."""

    replicas: Count | None = None
    """Each with a pool and a scheduler as the other sections say."""
    router: Literal["round-robin", "least-loaded", "prefix-aware"] | None = None
    balance_by: Literal["requests", "kv"] | None = None
    cache_threshold: Fraction | None = None
    balance_abs_threshold: int | None = Field(default=None, ge=0)
    balance_rel_threshold: float | None = Field(default=None, ge=1, allow_inf_nan=False)


class Config(Section):
    """An experiment."""

    schema_version: Literal[1] = 1
    seed: int = Field(default=0, ge=0, lt=2**32)
    num_runs: Count = 1
    """Repeats of a seeded workload, with seeds seed, seed + 1, ..."""
    workload: Workload = Workload()
    model: Model = Model()
    kv: Memory = Memory()
    scheduler: Scheduling = Scheduling()
    measure: Measuring = Measuring()
    engine: RealEngine = RealEngine()
    fleet: Replicas = Replicas()

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """From a TOML file; ValueError with file, line, key and the nearest known key."""
        from experiments.config import read_config

        return read_config([Path(path)])

    @classmethod
    def of(cls, **keys: Any) -> Config:
        """From keywords: any key by its name (block_size=32), or whole sections as dicts."""
        from experiments.config import config_of

        return config_of(keys)

    def with_(self, **keys: Any) -> Config:
        """The same with some keys changed, named as in `of`."""
        from experiments.config import config_of

        return config_of(keys, self)
