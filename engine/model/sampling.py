"""Which token follows: the specification of sampling, in plain torch, and the random numbers that all samplers share.

A token is the largest of logits / temperature + Gumbel noise, which picks each token with its softmax probability (the
Gumbel-max trick; Maddison et al., 2014). The noise comes from a counter (Philox 4x32-10; Salmon et al., 2011), not from
a state: it depends on the request's seed, the token's position and its place in the vocabulary, so that a request's
tokens are the same in every batch and on every device that computes the same logits.

Letters: S sequences, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MIN_TEMPERATURE = 1e-5
"""Anything below is greedy (as in vLLM): the reciprocal of a temperature must be finite."""
POSITION_STEP = 6_364_136_223_846_793_005
"""Odd (Knuth's, of his linear congruential generator): positions of a request have distinct Philox keys."""
LEAST_UNIFORM = 2.0**-32
"""What a uniform number of 0 becomes: half the distance to the next one."""
_ROUNDS = 10
_KEYS = (0x9E3779B9, 0xBB67AE85)
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WORD = 0xFFFFFFFF
_UNIFORM_SCALE = 4.6566127342e-10
"""Triton's: the largest 31-bit integer times this is below 1 in float32."""


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """How each row is sampled; all on the device of the logits."""

    temperature: torch.Tensor
    """[S] float32; 0: greedy."""
    seeds: torch.Tensor
    """[S] int64, one a request."""
    top_k: torch.Tensor
    """[S] int32: only the k largest logits; 0: all."""
    top_p: torch.Tensor
    """[S] float32: only the fewest tokens whose probabilities add up to p; 1: all."""

    @classmethod
    def greedy(cls, count: int, device: torch.device) -> SamplingTensors:
        """Of `count` rows that take the likeliest token."""
        zeros = torch.zeros(count, dtype=torch.int64, device=device)
        return cls(zeros.float(), zeros, zeros.int(), torch.ones(count, device=device))

    def rows(self, count: int) -> SamplingTensors:
        """The first rows, as views."""
        return SamplingTensors(self.temperature[:count], self.seeds[:count], self.top_k[:count], self.top_p[:count])

    @property
    def filtered(self) -> bool:
        """Whether some row has top-k or top-p. Waits for the device."""
        return bool(((self.top_k > 0) | (self.top_p < 1)).any())


def sample(logits: torch.Tensor, params: SamplingTensors, positions: torch.Tensor) -> torch.Tensor:
    """Token ids [S] int32 from logits [S, V] and the positions [S] int64 of the tokens that they follow.

    Of equal scores the lowest id. A logit that is -inf or NaN is never picked; a row with no other gives token 0, so
    that what follows has a valid id. Fused kernels are compared with this; it may wait for the device.
    """
    wide = _numbers(mask_filtered(logits, params) if params.filtered else logits)
    greedy = params.temperature < MIN_TEMPERATURE
    if bool(greedy.all()):  # noise is most of the work
        return wide.argmax(-1).int()
    noise = gumbel(uniforms(params.seeds, positions, logits.shape[1]))
    scores = _numbers(wide * (1.0 / _positive(params.temperature))[:, None] + noise)
    return torch.where(greedy[:, None], wide, scores).argmax(-1).int()


def mask_filtered(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """Logits [S, V] with -inf where top-k, and then top-p of what that leaves, at the row's temperature, say so.

    Of equal logits the lower ids stay; at least one does. Sorts every row, and waits for nothing.
    """
    scaled = _numbers(logits) / _positive(params.temperature)[:, None]
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    top_k, top_p = params.top_k[:, None], params.top_p[:, None]
    kept = (torch.arange(logits.shape[1], device=logits.device) < top_k) | (top_k <= 0)
    probabilities = ordered.masked_fill(~kept, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    kept &= (before < top_p) | (top_p >= 1)
    kept[:, 0] = True
    return logits.masked_fill(~torch.empty_like(kept).scatter_(-1, order, kept), -torch.inf)


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[S, V] float32 in [0, 1): of token v word v % 4 of Philox at counter v // 4, as Triton's `rand4x` has it.

    The key is seeds [S] + positions [S] * POSITION_STEP, modulo 2^64.
    """
    key = (seeds + positions * POSITION_STEP)[:, None]
    counter = torch.arange(-(-vocab_size // 4), device=seeds.device)[None, :]
    words = torch.stack(philox((counter, 0 * counter, 0 * counter, 0 * counter), key), -1)
    signed = words.flatten(1)[:, :vocab_size].int()
    return torch.where(signed < 0, -signed - 1, signed).float() * _UNIFORM_SCALE


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox 4x32-10: four random 32-bit words of four of a counter and a 64-bit key, all int64, broadcast."""
    c0, c1, c2, c3 = counter
    low, high = key & _WORD, key >> 32 & _WORD
    for _ in range(_ROUNDS):
        # A product of two words wraps around in int64, which leaves its 64 bits as they should be.
        first, third = c0 * _FACTORS[0], c2 * _FACTORS[1]
        c0, c1 = (third >> 32 & _WORD) ^ c1 ^ low, third & _WORD
        c2, c3 = (first >> 32 & _WORD) ^ c3 ^ high, first & _WORD
        low, high = low + _KEYS[0] & _WORD, high + _KEYS[1] & _WORD
    return c0, c1, c2, c3


def gumbel(uniform: torch.Tensor) -> torch.Tensor:
    """-log(-log(1 - u)) in float32: large values, which win, come from small u, where floats are finest."""
    return -torch.log(-torch.log1p(-uniform.clamp(min=LEAST_UNIFORM)))


def _numbers(logits: torch.Tensor) -> torch.Tensor:
    """In float32 at least, NaN as -inf."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.masked_fill(wide.isnan(), -torch.inf)


def _positive(temperature: torch.Tensor) -> torch.Tensor:
    """1 for greedy rows."""
    return torch.where(temperature < MIN_TEMPERATURE, 1.0, temperature)
