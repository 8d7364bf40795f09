"""The command line's options: one frozen record that `run`, `compare` and `validate` share.

Values stay text until the configuration's own types read them, so that a flag and a key complain alike.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from experiments.fleet_flags import FleetFlags
from experiments.session_flags import SessionFlags
from experiments.sharing_flags import SharingFlags

if TYPE_CHECKING:
    from experiments.config import Layer

_WORK = Group("Workload", sort_key=1)
_MODEL = Group("Model and GPU", sort_key=2)
_POOL = Group("KV memory", sort_key=3)
_RULES = Group("Scheduler", sort_key=4)
_MEASURE = Group("Measurement", sort_key=5)
_ENGINE = Group("Real engine", sort_key=6)
Text = str | None
Switch = bool | None

Json = Annotated[bool, Parameter(help="One strict JSON object on stdout.", negative=(), show_default=False)]
Overwrite = Annotated[bool, Parameter(help="Replace what is there of that name.", negative=(), show_default=False)]
Argv = Annotated[tuple[str, ...], Parameter(parse=False)]


def _option(group: Group, text: str, *names: str) -> Any:
    return Parameter(group=group, help=text, name=names or None, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags(FleetFlags, SharingFlags, SessionFlags):
    """What an experiment is."""

    config: Annotated[
        tuple[Path, ...],
        Parameter(
            name=("-c", "--config"),
            help="TOML file; may be repeated, later ones win.",
            negative=(),
            show_default=False,
            group=_WORK,
        ),
    ] = ()
    set: Annotated[
        tuple[str, ...],
        Parameter(
            name="--set",
            help="key=value over the file: --set kv.block_size=32.",
            negative=(),
            show_default=False,
            group=_WORK,
        ),
    ] = ()
    workload: Annotated[Text, _option(_WORK, "A workload by name [paper-fig2, if there is no --trace].")] = None
    trace: Annotated[
        Text, _option(_WORK, "A trace file of any format that `trace inspect --help` names, gzip or not.")
    ] = None
    trace_format: Annotated[Text, _option(_WORK, "Its format, where it is not to be recognised [auto].")] = None
    lengths: Annotated[
        tuple[str, ...],
        Parameter(
            help="sharegpt=FILE or alpaca=FILE: real lengths for a named workload.",
            negative=(),
            show_default=False,
            group=_WORK,
        ),
    ] = ()
    on_bad_row: Annotated[Text, _option(_WORK, "refuse or drop (and count) [refuse].")] = None
    trace_block_size: Annotated[Text, _option(_WORK, "Tokens per block id of the file [its format's].")] = None
    recipe: Annotated[Text, _option(_WORK, "Turns of a ShareGPT talk that are a request.")] = None
    tokenizer: Annotated[Text, _option(_WORK, "Counts texts: words, or a tokenizer.json.")] = None
    num_requests: Annotated[Text, _option(_WORK, "The first so many requests [all].")] = None
    repeat: Annotated[
        Switch, Parameter(help="Go round where the file holds fewer.", negative=(), show_default=False, group=_WORK)
    ] = None
    request_rate: Annotated[Text, _option(_WORK, "Requests per second; of chat: conversations [its own].")] = None
    max_concurrency: Annotated[Text, _option(_WORK, "Most requests inside at once; others wait outside [all].")] = None
    time_scale: Annotated[Text, _option(_WORK, "Arrival times times this; 2 is twice as slow [1].")] = None
    seed: Annotated[Text, _option(_WORK, "Seed of a seeded workload [0].")] = None
    num_runs: Annotated[Text, _option(_WORK, "Repeats, with seeds seed, seed + 1, ... [1].")] = None
    model: Annotated[
        Text,
        _option(
            _MODEL, "Catalogue name, Hugging Face id or config.json [llama-3.1-8b; paper-*: opt-13b].", "-m", "--model"
        ),
    ] = None
    gpu: Annotated[Text, _option(_MODEL, "GPU by name [a100-80g; paper-*: a100-40g].")] = None
    tp: Annotated[
        Text,
        _option(
            _MODEL,
            "Tensor-parallel ranks, simulated: of bytes and step times; not with --backend cpu or gpu [1].",
            "--tp",
            "--tensor-parallel-size",
        ),
    ] = None
    pp: Annotated[
        Text, _option(_MODEL, "Pipeline stages, simulated, of bytes [1].", "--pp", "--pipeline-parallel-size")
    ] = None
    kv_cache_dtype: Annotated[
        Text, _option(_MODEL, "Storage type of KV, e.g. fp8 [the model's].", "--kv-cache-dtype", "--kv-dtype")
    ] = None
    max_model_len: Annotated[
        Text, _option(_MODEL, "Longest prompt + output, in tokens [the model's; paper-*: 2048].")
    ] = None
    allocator: Annotated[
        Text,
        _option(
            _POOL,
            "Comma list: paged, orca-max, orca-pow2, orca-oracle, virtual, contiguous-RESERVE-FIT, "
            "package.module:Class "
            "[compare: the first four; run: paged].",
            "-a",
            "--allocator",
        ),
    ] = None
    block_size: Annotated[
        Text,
        _option(
            _POOL, "Comma list of tokens per block [16; compare without arguments: a sweep of 1 to 256 for paged]."
        ),
    ] = None
    page_bytes: Annotated[Text, _option(_POOL, "Comma list of page sizes of the allocator virtual [2MiB].")] = None
    num_blocks: Annotated[
        Text,
        _option(_POOL, "Pins the blocks that requests can hold; the null block comes on top [by --capacity-rule]."),
    ] = None
    kv_tokens: Annotated[Text, _option(_POOL, "Pins the capacity in tokens [by --capacity-rule].")] = None
    kv_bytes: Annotated[
        Text, _option(_POOL, "Pins the capacity in bytes; 12GiB and 12GB are understood [by --capacity-rule].")
    ] = None
    capacity_rule: Annotated[
        Text, _option(_POOL, "default, sosp23, chapter-gib, chapter-gb or chapter-mixed [default; paper-*: sosp23].")
    ] = None
    gpu_memory_utilization: Annotated[Text, _option(_POOL, "Fraction of GPU memory to use [0.92].")] = None
    headroom_gb: Annotated[Text, _option(_POOL, "Memory kept free, in GB of 10^9 bytes [2.147, i.e. 2 GiB].")] = None
    allow_unequal_pools: Annotated[
        Switch,
        Parameter(
            help="Compare block sizes at one num_blocks, i.e. unequal pools.",
            negative=(),
            show_default=False,
            group=_POOL,
        ),
    ] = None
    preset: Annotated[Text, _option(_RULES, "Whose rules: vllm or sosp23 [vllm; paper-*: sosp23].")] = None
    max_num_seqs: Annotated[Text, _option(_RULES, "Most running requests [vllm: 128; sosp23: 2048].")] = None
    max_num_batched_tokens: Annotated[Text, _option(_RULES, "Most tokens in a step [vllm: 2048; sosp23: 2560].")] = None
    enable_prefix_caching: Annotated[Switch, _option(_RULES, "Share equal prefixes [vllm: yes; sosp23: no].")] = None
    enable_chunked_prefill: Annotated[
        Switch, _option(_RULES, "Split long prompts over steps [vllm: yes; sosp23: no].")
    ] = None
    full_sequence_gate: Annotated[Switch, _option(_RULES, "Admit only what fits as a whole [yes].")] = None
    watermark: Annotated[
        Text, _option(_RULES, "Fraction of blocks kept free at admission [vllm: 0; sosp23: 0.01].")
    ] = None
    policy: Annotated[Text, _option(_RULES, "fcfs or priority [fcfs].")] = None
    batching: Annotated[Text, _option(_RULES, "iteration, or request: no joining a running batch [iteration].")] = None
    long_prefill_token_threshold: Annotated[
        Text, _option(_RULES, "Most tokens of one request in a step; 0: no limit [0].")
    ] = None
    too_long: Annotated[Text, _option(_RULES, "reject or truncate what exceeds the model or the pool [reject].")] = None
    step_model: Annotated[
        Text,
        _option(
            _MEASURE,
            "linear:a,b,c,d (s), roofline, table:FILE, calibrated:FILE, paper-13b (66b, 175b), or recorded:FILE, the "
            "steps.parquet of a real run [roofline; paper-*: paper-13b].",
        ),
    ] = None
    executor: Annotated[Text, _option(_MEASURE, "cost, shadow (checks every token) or torch-cpu [cost].")] = None
    window: Annotated[
        Text,
        _option(_MEASURE, "START:STOP in s of the means, half-open, or arrivals [arrivals; paper-*: the paper's]."),
    ] = None
    end: Annotated[Text, _option(_MEASURE, "Second at which the run is cut, or none [none; paper-*: the paper's].")] = (
        None
    )
    record: Annotated[
        Text,
        _option(
            _MEASURE,
            "steps: a row a step; residency: how long cached blocks stay; both step; sharing: blocks shared in each "
            "step [none]. More for sweep.",
        ),
    ] = None
    skip: Annotated[
        Switch,
        Parameter(
            name="--skip", negative="--no-skip", help="Take runs of equal steps at once; exact [yes].", group=_MEASURE
        ),
    ] = None
    map_frames: Annotated[Text, _option(_MEASURE, "Pictures of the pool [160 if results are written].")] = None
    backend: Annotated[
        Text, _option(_ENGINE, "sim models step times; cpu and gpu run the model and measure them [sim].")
    ] = None
    kernel: Annotated[
        Text,
        _option(
            _ENGINE,
            "Attention of contiguous allocators: paged, contiguous, or both in turn [compare: both; run: paged].",
        ),
    ] = None
    dtype: Annotated[Text, _option(_ENGINE, "float32, float16, bfloat16 or auto [cpu: float32; gpu: the model's].")] = (
        None
    )
    attention: Annotated[Text, _option(_ENGINE, "Attention back end [cpu: reference; gpu: triton].")] = None
    layout: Annotated[Text, _option(_ENGINE, "KV layout by name [the back end's own].")] = None
    weights_seed: Annotated[
        Text, _option(_ENGINE, "Of random weights [0 for a catalogue name, which has no others].")
    ] = None

    def layers(self) -> list[Layer]:
        """Files, then variables of the environment, then `--set`, then flags."""
        from experiments.config import Layer, read_layer, set_layer
        from experiments.environment import read_variables

        layers = [*(read_layer(path) for path in self.config), read_variables()]
        layers += [set_layer(text) for text in self.set]
        values = self._values()
        given = {key: value for key, (_, value) in values.items()}
        return [*layers, Layer(given, "command line", places={key: flag for key, (flag, _) in values.items()})]

    def _values(self) -> dict[str, tuple[str, Any]]:
        """What was given, by dotted key, with the flag's spelling."""
        from experiments.config import leaf_keys
        from experiments.exits import UsageError
        from experiments.quantities import headroom_bytes

        known, values = leaf_keys(), dict[str, tuple[str, Any]]()
        for field in fields(self):
            value, flag = getattr(self, field.name), "--" + field.name.replace("_", "-")
            if value is None or field.name in ("config", "set", "lengths", "record", "headroom_gb"):
                continue
            values[known[field.name]] = (flag, value)
        if self.headroom_gb is not None:
            values["kv.headroom_bytes"] = ("--headroom-gb", headroom_bytes(self.headroom_gb))
        if self.record is not None:
            if unknown := set(self.record.split(",")) - {"steps", "residency", "sharing"}:
                always = " (requests and timeline are kept without it)" if unknown <= {"requests", "timeline"} else ""
                got = ", ".join(sorted(unknown))
                raise UsageError(f"--record knows 'steps', 'residency' and 'sharing', got {got!r}{always}")
            values |= {f"measure.record_{part}": ("--record", True) for part in self.record.split(",")}
        if self.lengths:
            values["workload.lengths"] = ("--lengths", pairs_of(self.lengths))
        return values


def flag_of(key: str) -> str:
    """`--tp: ` for the dotted key `model.tp`, to stand before it in a message; nothing for a key without a flag."""
    return "".join(f"--{leaf}: ".replace("_", "-") for leaf in key.split(".")[-1:] if leaf in Flags.__annotations__)


def pairs_of(texts: tuple[str, ...]) -> dict[str, str]:
    """`sharegpt=FILE` as a mapping."""
    from experiments.exits import UsageError

    pairs = dict(text.partition("=")[::2] for text in texts)
    if "" in pairs.values():
        raise UsageError(f"--lengths needs sharegpt=FILE or alpaca=FILE, got {' '.join(texts)}")
    return pairs
