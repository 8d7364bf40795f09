"""What is measured: synthetic steps over batch, context and chunk. No trace, and nothing that a validation will see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

CHUNKED: Final = (0.0, 1 / 16, 1 / 4, 5 / 8, 15 / 16)
"""Sequences that decode beside chunks, of the most that there can be."""
FEWEST_BETWEEN, MOST_BETWEEN = 2, 24
"""Decode steps between two steps with chunks. A server whose prompts are as long as its outputs gets a token of prompt
for each that it makes, so that behind T of them T / S steps of S sequences follow. Compute-bound steps one after the
other draw so much power that clocks fall, and would be up to a tenth slower than they are in serving."""
BESIDE: Final = (1 / 2, 3 / 4)
"""Sequences that decode beside chunks, of a bucket's tokens: of small buckets they are most, and prompts are short."""
SMALL_BUCKET, SHORT = 256, 48
"""Tokens: of the largest bucket that has those, and the mean context where contexts are short."""
MOST_CHUNKS: Final = 8
FULL_FRAC: Final = 0.95
"""Of what decoding sequences leave room for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the engine that is measured."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_tokens: int
    """Token slots of the pool."""
    block_size: int

    def held(self, contexts: Iterable[int], growth: int) -> int:
        """Token slots of the blocks that sequences hold once each has grown by so many tokens."""
        return sum(-(-(context + growth) // self.block_size) for context in contexts) * self.block_size

    def room(self, num_seqs: int, growth: int) -> int:
        """Tokens that so many sequences can hold in all and still grow by so many each, last blocks half used."""
        return self.kv_tokens // self.block_size * self.block_size - num_seqs * (growth + self.block_size)


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """`contexts` tokens of each sequence, which then decode together for some steps."""

    name: str
    contexts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """One step: chunks of (context, new) tokens beside the sequences that decode."""

    chunks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MixedPoint:
    """Sequences that decode all the while, and steps with chunks beside them."""

    name: str
    contexts: tuple[int, ...]
    steps: tuple[ChunkStep, ...]
    between: int
    """Decode steps behind each of them."""

    @property
    def growth(self) -> int:
        """Tokens of a sequence that decodes from the first step to the last, with some to spare."""
        return grown(self.between, len(self.steps))


def grown(between: int, num_steps: int) -> int:
    """See `MixedPoint.growth`."""
    return (between + 2) * num_steps + 4


def lengths(rng: Random, count: int, total: int, longest: int) -> tuple[int, ...]:
    """Ragged lengths of 1 to `longest` that sum to about `total`, at most. Exponential, as those of a server's running
    requests nearly are: a step waits for its longest sequence, so a batch of equal ones would be faster."""
    drawn = [min(rng.expovariate(count / total), longest) for _ in range(count)]
    scale = total / sum(drawn)
    return tuple(min(max(int(value * scale), 1), longest) for value in drawn)


def full(rng: Random, count: int, growth: int, longest: int, limits: Limits) -> tuple[int, ...]:
    """Lengths that leave no block of the pool free once they have grown: at most half of each last block is empty, as
    with sequences whose lengths nobody has chosen. Equal ones where the model's longest leave room."""
    size, blocks = limits.block_size, limits.kv_tokens // limits.block_size
    each, more = divmod(blocks, count)
    found = []
    for index in range(count):
        most = min((each + (index < more)) * size - growth, longest)
        spare = 0 if most == longest else rng.randrange(size // 2 + 1)
        found.append(max(most - spare, most // 2))
    return tuple(found)


def decode_points(buckets: list[int], limits: Limits, num_steps: int, kv_places: int, seed: int) -> list[DecodePoint]:
    """For each bucket, full, so many sums of context from a few tokens a sequence to all that pool or model hold."""
    rng, points = Random(seed), []
    for bucket in buckets:
        growth, longest = num_steps + 2, limits.max_model_len - num_steps - 2
        top = full(rng, bucket, growth, longest, limits)
        most = sum(top)
        if min(top) < 1:
            continue
        ratio = (most / (8 * bucket)) ** (1 / (kv_places - 1)) if most > 8 * bucket else 1.0
        totals = sorted({min(round(8 * bucket * ratio**place), most) for place in range(kv_places)})
        for total in totals:
            spread = top if most <= total * 1.01 else lengths(rng, bucket, total, longest)
            while limits.held(spread, growth) > limits.kv_tokens:
                spread = tuple(max(length - limits.block_size // 8 - 1, 1) for length in spread)
            points.append(DecodePoint(f"decode-{bucket}-{total}", spread))
    return points


def mixed_points(buckets: list[int], limits: Limits, steps_a_point: int, seed: int) -> list[MixedPoint]:
    """For each bucket of tokens and each number of decoding sequences: steps of one or several chunks that fill it,
    once short ones at the start of their prompts beside short contexts, once any. Most sequences decode once more with
    as many tokens as the pool holds beside the chunks."""
    rng, points = Random(seed + 1), []
    for tokens in buckets:
        most_chunks = max(MOST_CHUNKS, _fewest_chunks(tokens, limits))
        for decodes in _beside(tokens, limits):
            between = _between(tokens, decodes, steps_a_point, limits)
            growth = grown(between, steps_a_point)
            room = limits.room(decodes + most_chunks, growth if decodes else 0)
            longest = min(limits.max_model_len // 2, limits.max_model_len - growth - 1)
            if decodes >= tokens or room < decodes + tokens or (decodes and longest < 1):
                continue
            mean = rng.choice((64, 256, limits.max_model_len // 4))
            totals = {"-short": min(decodes * SHORT, room // 2), "": min(decodes * mean, room // 2)}
            if decodes == int(CHUNKED[-1] * limits.max_num_seqs):
                totals["-full"] = int((room - tokens) * FULL_FRAC)
            for name, total in totals.items():
                contexts = lengths(rng, decodes, total, longest) if decodes else ()
                left = 0 if name == "-short" else min(room - sum(contexts), limits.kv_tokens // 2)
                seats = limits.max_num_seqs - decodes
                steps = tuple(_chunk_step(rng, tokens - decodes, seats, limits, left) for _ in range(steps_a_point))
                points.append(MixedPoint(f"mixed-{tokens}-{decodes}{name}", contexts, steps, between))
    return points


def _beside(tokens: int, limits: Limits) -> list[int]:
    """Numbers of sequences that decode beside chunks, ascending."""
    found = {int(share * limits.max_num_seqs) for share in CHUNKED}
    if tokens <= SMALL_BUCKET:
        found |= {min(int(share * tokens), limits.max_num_seqs - 1) for share in BESIDE}
    return sorted(found)


def _between(tokens: int, decodes: int, num_steps: int, limits: Limits) -> int:
    """Decode steps behind one of `tokens`; none where nobody decodes, fewer where the model or the pool is short."""
    if not decodes:
        return 0
    wanted = min(max(tokens // decodes, FEWEST_BETWEEN), MOST_BETWEEN)
    place = min(limits.max_model_len // 2 - 2, limits.kv_tokens // (2 * decodes))
    return min(wanted, max((place - 4) // num_steps - 2, FEWEST_BETWEEN))


def _fewest_chunks(tokens: int, limits: Limits) -> int:
    """Chunks that so many tokens take where each has half of the model's longest sequence, at most."""
    return -(-tokens // ((limits.max_model_len - 2) // 2))


def _chunk_step(rng: Random, tokens: int, seats: int, limits: Limits, room: int) -> ChunkStep:
    """Chunks of `tokens` tokens in all, fewer where the model's longest sequences do not take them; `room` for their
    contexts, 0: they have none."""
    longest = limits.max_model_len - 2
    count = min(max(min(rng.choice((1, 1, 2, 4, 8)), tokens), _fewest_chunks(tokens, limits)), seats)
    cuts = sorted(rng.sample(range(1, tokens), count - 1)) if count > 1 else []
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, tokens], strict=True)]
    chunks = []
    for size in sizes:
        size = min(size, longest // 2)
        most = min(longest - size, room // count - size)
        context = rng.choice((0, 0, rng.randint(0, max(most, 0)), max(most, 0)))
        chunks.append((max(context, 0), size))
    return ChunkStep(tuple(chunks))
