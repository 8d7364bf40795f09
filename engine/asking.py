"""From a call of `LLM.generate` to requests: what each prompt asks for, and what of that cannot be."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from engine.core.content import TokenContent
from engine.core.group import in_group
from engine.core.option_checks import MOST_SEED, check_whole
from engine.core.request import Request
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.worker.beam_search import BeamParams

if TYPE_CHECKING:
    from engine.core.scheduler import Scheduler
    from engine.worker.engine import Engine

Prompt = str | Sequence[int] | npt.NDArray[np.integer[Any]]
Samples = Literal["fork", "requests"]
EarlyStopping = bool | Literal["never"]


def seed_of(seed: int, place: int) -> int:
    """Of a prompt's first completion, by the engine's seed and the prompt's place in the call: far from all others, as
    completions count up from theirs. Were it shifted, seeds that differ in their high bits would draw alike."""
    digest = hashlib.blake2b(f"{seed} {place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MOST_SEED


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that is to be made: for one completion, or as a group for several."""

    prompt_index: int
    index: int
    """Of its first completion among those of the prompt."""
    request: Request
    params: SamplingParams
    seed: int
    """Of its first sequence; the others count up from there."""
    beams: BeamParams | None = None

    @property
    def width(self) -> int:
        """Completions that come of it."""
        return 1 if self.request.group is None else len(self.request.group.members)


@dataclass(frozen=True, slots=True)
class Call:
    """How completions are made, whatever the prompt."""

    samples: Samples = "fork"
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if self.samples not in ("fork", "requests"):
            raise ValueError(f"samples: expected 'fork' or 'requests', got {self.samples!r}")
        if self.beam_width is not None:
            check_whole("beam_width", self.beam_width, 1)
            self._beams(1, frozenset())
        elif self.length_penalty != 1.0 or self.early_stopping is not False:
            raise ValueError("length_penalty and early_stopping belong to a beam search: give a beam_width")

    def _beams(self, max_tokens: int, stops: frozenset[int]) -> BeamParams:
        assert self.beam_width is not None
        return BeamParams(self.beam_width, max_tokens, stops, self.length_penalty, self.early_stopping)

    def check(self, params: SamplingParams) -> None:
        """ValueError for sampling that a beam search has no use for."""
        if self.beam_width is None:
            return
        if params.temperature != 0:
            raise ValueError(
                f"a beam search keeps the likeliest beams and draws nothing: give temperature=0, not "
                f"{params.temperature:g}, or ask for n={self.beam_width} samples instead"
            )
        if params.n != 1:
            raise ValueError(f"a beam search gives beam_width={self.beam_width} completions: leave n={params.n} out")
        if params.stop:
            raise ValueError(
                f"a beam search ends at tokens, not at texts: give stop_token_ids instead of {params.stop}"
            )

    def ask(
        self, place: int, first: Asked, params: SamplingParams, eos_token_ids: Sequence[int], vocab_size: int
    ) -> list[Asked]:
        """The requests of a prompt; `first`: the one that would make a single completion."""
        if self.beam_width is not None:
            ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
            beams = self._beams(first.request.max_tokens, frozenset(ends))
            if beams.num_candidates > vocab_size:
                raise ValueError(
                    f"prompt {place}: beam_width={beams.width} looks at {beams.num_candidates} tokens a beam, and the "
                    f"model has {vocab_size}"
                )
            in_group(first.request, beams.width, beam=True)
            return [replace(first, beams=beams)]
        in_group(first.request, params.n)
        return [first]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, as text or ids, is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and not isinstance(prompts[0], str | Sequence | np.ndarray):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)


def params_of(
    params: SamplingParams | Sequence[SamplingParams] | None, n: int | None, count: int
) -> list[SamplingParams]:
    """What each of `count` prompts asks for. ValueError for another number of them."""
    each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * count
    if len(each) != count:
        raise ValueError(f"expected SamplingParams for each of {count} prompts, got {len(each)}")
    return each if n is None else [replace(wanted, n=n) for wanted in each]


def read(engine: Engine, prompt: Prompt, place: int) -> RequestOutput:
    """A prompt as token ids. ValueError for one that is empty, or that the model cannot read."""
    tokenizer, text = engine.model.tokenizer, None
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError(f"prompt {place}: {engine.config.model} has no tokenizer: give token ids")
        text, ids = prompt, list(tokenizer.encode(prompt))
    else:
        ids = list(prompt)
        if wrong := [token for token in ids if isinstance(token, bool) or not isinstance(token, int | np.integer)]:
            raise ValueError(f"prompt {place}: expected token ids, whole numbers, got {wrong[0]!r}")
        ids = [int(token) for token in ids]
    if not ids:
        raise ValueError(f"prompt {place}: expected at least one token, got none")
    vocab = engine.architecture.vocab_size
    bad = [token for token in ids if not 0 <= token < vocab]
    if bad:
        raise ValueError(f"prompt {place}: token {bad[0]} is outside the model's vocabulary of {vocab}")
    return RequestOutput(text, ids)


def request_of(number: int, ids: Sequence[int], max_tokens: int, salt: str | None, lora: str | None) -> Request:
    """A request of these tokens; others find its blocks if their salt and adapter are the same."""
    content = TokenContent(list(ids), salt=salt, lora=lora)
    return Request(number, len(ids), max_tokens, arrival=number, content=content)


def check_group(one: Asked, scheduler: Scheduler, allocator: str) -> None:
    """ValueError for a group that the scheduler or the allocator could never serve."""
    config, width = scheduler.config, one.width
    if one.request.group is None:
        return
    name, instead = ("n", "give samples='requests'") if one.beams is None else ("beam_width", "search with fewer beams")
    for limit in ("max_num_seqs", "max_num_batched_tokens"):
        most = getattr(config, limit)
        if width > most:
            raise ValueError(
                f"prompt {one.prompt_index}: {name}={width} sequences run together, and {limit} is {most}: raise it, "
                f"or {instead}"
            )
    pool = scheduler.allocator
    grows = getattr(pool, "contiguous", False) and pool.growth_tokens != 0
    if width > 1 and (grows or not hasattr(pool, "fork")):
        why = "its reservations grow and move" if grows else "it has no fork"
        raise ValueError(
            f"prompt {one.prompt_index}: allocator {allocator} serves no groups ({why}), so {name}={width} needs "
            f"another one{', or ' + instead if one.beams is None else ''}"
        )


def one_each(name: str, value: str | Sequence[str | None] | None, count: int) -> list[str | None]:
    """A value for all prompts, or one for each. ValueError for another number of them, or what is no text."""
    each = [value] * count if value is None or isinstance(value, str) else list(value)
    if len(each) != count:
        raise ValueError(f"{name}: expected one for each of {count} prompts, got {len(each)}")
    if wrong := [one for one in each if not (one is None or isinstance(one, str))]:
        raise ValueError(f"{name}: expected a text or None, got {wrong[0]!r}")
    return each
