"""What is measured: synthetic steps over batch, context and chunk. No trace, and nothing that a validation will see."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

CHUNKED: Final = (0.0, 1 / 16, 1 / 4, 5 / 8, 15 / 16)
"""Sequences that decode beside chunks, of the most that there can be."""
BETWEEN: Final = 6
"""Decode steps between two steps with chunks, as a server has: compute-bound steps one after the other draw so much
power that clocks fall, and would be up to a tenth slower than they are in serving."""
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

    def room(self, num_seqs: int, growth: int) -> int:
        """Tokens that so many sequences can hold in all and still grow by so many each, last blocks half used."""
        return self.kv_tokens - num_seqs * (growth + self.block_size)


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


def lengths(rng: Random, count: int, total: int, longest: int) -> tuple[int, ...]:
    """Ragged lengths of 1 to `longest` that sum to about `total`, at most. Exponential, as those of a server's running
    requests nearly are: a step waits for its longest sequence, so a batch of equal ones would be faster."""
    drawn = [min(rng.expovariate(count / total), longest) for _ in range(count)]
    scale = total / sum(drawn)
    return tuple(min(max(int(value * scale), 1), longest) for value in drawn)


def decode_points(buckets: list[int], limits: Limits, num_steps: int, kv_places: int, seed: int) -> list[DecodePoint]:
    """For each bucket, full, so many sums of context from a few tokens a sequence to all that pool or model hold."""
    rng, points = Random(seed), []
    for bucket in buckets:
        room = limits.room(bucket, num_steps + 2)
        longest = limits.max_model_len - num_steps - 2
        most = min(room, bucket * longest)
        if most < bucket:
            continue
        ratio = (most / (8 * bucket)) ** (1 / (kv_places - 1)) if most > 8 * bucket else 1.0
        totals = sorted({min(round(8 * bucket * ratio**place), most) for place in range(kv_places)})
        for total in totals:
            top = most <= total * 1.01
            spread = (total // bucket,) * bucket if top else lengths(rng, bucket, total, longest)
            points.append(DecodePoint(f"decode-{bucket}-{total}", spread))
    return points


def mixed_points(buckets: list[int], limits: Limits, steps_a_point: int, seed: int) -> list[MixedPoint]:
    """For each bucket of tokens and each number of decoding sequences: steps of one or several chunks that fill it,
    at the start of their prompts or far into them. Most sequences decode once with few tokens and once with as many as
    the pool holds beside the chunks."""
    rng, points = Random(seed + 1), []
    growth = (BETWEEN + 2) * steps_a_point + 4
    for tokens in buckets:
        for decodes in dict.fromkeys(int(share * limits.max_num_seqs) for share in CHUNKED):
            room = limits.room(decodes + MOST_CHUNKS, growth if decodes else 0)
            if decodes >= tokens or room < decodes + tokens:
                continue
            mean = rng.choice((64, 256, limits.max_model_len // 4))
            totals = {"": min(decodes * mean, room // 2)}
            if decodes == int(CHUNKED[-1] * limits.max_num_seqs):
                totals["-full"] = int((room - tokens) * FULL_FRAC)
            for name, total in totals.items():
                contexts = lengths(rng, decodes, total, limits.max_model_len // 2) if decodes else ()
                left = min(room - sum(contexts), limits.kv_tokens // 2)
                seats = limits.max_num_seqs - decodes
                steps = tuple(_chunk_step(rng, tokens - decodes, seats, limits, left) for _ in range(steps_a_point))
                points.append(MixedPoint(f"mixed-{tokens}-{decodes}{name}", contexts, steps))
    return points


def _chunk_step(rng: Random, tokens: int, seats: int, limits: Limits, room: int) -> ChunkStep:
    """Chunks of `tokens` tokens in all, fewer where the model's longest sequences do not take them."""
    longest = limits.max_model_len - 2
    count = min(max(min(rng.choice((1, 1, 2, 4, 8)), tokens), -(-tokens // (longest // 2))), seats)
    cuts = sorted(rng.sample(range(1, tokens), count - 1)) if count > 1 else []
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, tokens], strict=True)]
    chunks = []
    for size in sizes:
        size = min(size, longest // 2)
        most = min(longest - size, room // count - size)
        context = rng.choice((0, 0, rng.randint(0, max(most, 0)), max(most, 0)))
        chunks.append((max(context, 0), size))
    return ChunkStep(tuple(chunks))
