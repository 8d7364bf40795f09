"""Options of requests with several sequences, and of what happens to those that memory runs out for."""

# No `from __future__ import annotations`: whoever inherits the options would look their names up at home.
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

SHARING = Group("Samples, beams and preemption", sort_key=4.5)
Text = str | None


def _option(text: str, *names: str) -> Any:
    return Parameter(group=SHARING, help=text, name=names or None, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SharingFlags:
    """How many sequences a request has, who gives way, and what copies cost."""

    num_samples: Annotated[
        Text,
        _option("Sequences of each request, all of its output length, from one prompt; simulated only [1]."),
    ] = None
    beam_width: Annotated[Text, _option("Beams of a search, in place of samples [no search].")] = None
    samples_as: Annotated[
        Text,
        _option(
            "fork: a group that shares its prompt's blocks, copied on write; requests: so many equal requests, which "
            "share through the prefix cache [fork]."
        ),
    ] = None
    preemption: Annotated[
        Text,
        _option(
            "What a victim's tokens become: recompute, swap (to host memory), or auto: groups swap, single sequences "
            "recompute [vllm: recompute; sosp23: auto where there are groups]."
        ),
    ] = None
    victim: Annotated[
        Text, _option("Who gives way: last, least-computed or priority [fcfs: last; priority: priority].")
    ] = None
    host_bytes: Annotated[
        Text,
        _option("Host memory for who is swapped out: 20GiB, or pool, as much as KV memory [sosp23 with auto: pool]."),
    ] = None
    host_blocks: Annotated[Text, _option("The same in blocks [by --host-bytes].")] = None
    host_bytes_per_s: Annotated[
        Text, _option("Bytes a second between device and host [by GPU: 25e9; h100, h200: 55.3e9].")
    ] = None
    host_copy_s: Annotated[
        Text, _option("Seconds that each copy call takes beside its bytes [by GPU: 3e-6; h100, h200: 7.2e-6].")
    ] = None
    copy_bytes_per_s: Annotated[
        Text, _option("Bytes a second read, and written, where blocks are copied on the device [0.8 x half the GPU's].")
    ] = None
    beam_spread: Annotated[
        Text,
        _option(
            "How much more a beam's further candidate costs than its first one, on average: beams branch less where it "
            "is large [8]."
        ),
    ] = None
