"""The specification of the small operations, against loops over single numbers."""

import math

import pytest
import torch

from engine.model import TorchOps
from engine.model.rope import Rope

OPS = TorchOps()
H, KH, D, BS = 4, 2, 6, 4
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
"""The table of angles is float32."""


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def normed(row, weight, eps):
    root = math.sqrt(sum(float(v) ** 2 for v in row) / len(row) + eps)
    return [float(v) / root * float(w) for v, w in zip(row, weight, strict=True)]


def turned(head, position, theta):
    half = len(head) // 2
    out = [0.0] * len(head)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(head))
        a, b = float(head[i]), float(head[i + half])
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


@pytest.mark.parametrize("in_place", [False, True])
def test_norm_is_each_row_over_its_root_mean_square(in_place):
    x, weight = draw(3, 5), draw(5, seed=1)
    expected = torch.tensor([normed(row, weight, 0.1) for row in x], dtype=torch.float64)
    out = x if in_place else torch.empty(3, 5, dtype=torch.float64)
    assert OPS.norm(x, weight, 0.1, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(OPS.norm(draw(3, 5), weight, 0.1), expected, rtol=1e-12, atol=1e-12)


def test_add_norm_adds_in_place_and_norms_the_sum_as_it_is_stored():
    x, residual, weight = draw(3, 5, dtype=torch.bfloat16), draw(3, 5, seed=1, dtype=torch.bfloat16), draw(5, seed=2)
    weight = weight.to(torch.bfloat16)
    total = x + residual
    result = OPS.add_norm(x, residual, weight, 1e-6, out=x)
    assert result is x
    assert torch.equal(residual, total)
    expected = torch.tensor([normed(row, weight, 1e-6) for row in total]).to(torch.bfloat16)
    assert torch.equal(result, expected)


def test_gate_is_silu_of_the_first_half_times_the_second():
    x, out = draw(3, 8), torch.empty(3, 4, dtype=torch.float64)
    expected = torch.tensor(
        [[float(g) / (1 + math.exp(-g)) * float(u) for g, u in zip(row[:4], row[4:], strict=True)] for row in x],
        dtype=torch.float64,
    )
    assert OPS.gate(x, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(OPS.gate(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("head_norm", [False, True])
@pytest.mark.parametrize("slots", [[5, -1, 0, 11], [-1, 3, -1, 2], [-1] * 4, [3, 2, 1, 0]], ids=str)
def test_q_comes_back_rotated_and_k_and_v_lie_at_their_slots(rotated, head_norm, slots):
    qkv, positions = draw(4, (H + 2 * KH) * D), [0, 7, 2, 9]
    heads = qkv.clone().view(4, H + 2 * KH, D)
    norms = {"q_norm": draw(D, seed=1), "k_norm": draw(D, seed=2), "eps": 0.01} if head_norm else {}
    cache = torch.full((3, 2, BS, KH, D), torch.nan, dtype=torch.float64)  # K and V beside each other in a block
    k_cache, v_cache = cache[:, 0], cache[:, 1]
    table = Rope(50.0).cos_sin(10, D) if rotated else None
    q = OPS.rotate_and_write(
        qkv,
        table,
        torch.tensor(positions),
        k_cache,
        v_cache,
        torch.tensor(slots),
        num_heads=H,
        num_kv_heads=KH,
        **norms,
    )

    def expected(token, head):
        row = heads[token, head]
        if head_norm:
            row = normed(row, norms["q_norm"] if head < H else norms["k_norm"], 0.01)
        return torch.tensor(turned(row, positions[token], 50.0) if rotated else [float(v) for v in row])

    assert q.shape == (4, H, D)
    assert q.data_ptr() == qkv.data_ptr()
    wanted_k, wanted_v = torch.full_like(k_cache, torch.nan), torch.full_like(v_cache, torch.nan)
    for token, slot in enumerate(slots):
        torch.testing.assert_close(q[token], torch.stack([expected(token, h) for h in range(H)]).double(), **CLOSE)
        if slot >= 0:
            wanted_k[slot // BS, slot % BS] = torch.stack([expected(token, H + h) for h in range(KH)])
            wanted_v[slot // BS, slot % BS] = heads[token, H + KH :]
    torch.testing.assert_close(k_cache, wanted_k, equal_nan=True, **CLOSE)
    torch.testing.assert_close(v_cache, wanted_v, equal_nan=True, rtol=0, atol=0)


R, P, Q = 5, 4, 3


def turned_pairs(key, position, theta, interleaved):
    """Element by element, each in its place."""
    if not interleaved:
        return turned(key, position, theta)
    halves = turned([*key[0::2], *key[1::2]], position, theta)
    return [halves[i // 2 + (i % 2) * len(key) // 2] for i in range(len(key))]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("slots", [[5, -1, 0, 11], [-1, 3, -1, 2], [-1] * 4, [3, 2, 1, 0]], ids=str)
def test_latents_lie_normed_and_rotary_keys_turned_at_their_slots(interleaved, slots):
    down, positions = draw(4, Q + 2 + R + P), [0, 7, 2, 9]
    before, kv_norm, q_norm = down.clone(), draw(R, seed=1), draw(Q, seed=2)
    cache, q_out = torch.full((3, BS, R + P), torch.nan, dtype=torch.float64), torch.empty(4, Q, dtype=torch.float64)
    OPS.write_latents(
        down, Rope(50.0).cos_sin(10, P), torch.tensor(positions), cache, torch.tensor(slots), kv_norm, eps=0.01,
        interleaved=interleaved, q_norm=q_norm, q_out=q_out,
    )  # fmt: skip
    wanted = torch.full_like(cache, torch.nan)
    for token, slot in enumerate(slots):
        latent, key = before[token, -R - P : -P], before[token, -P:].tolist()
        both = normed(latent, kv_norm, 0.01) + turned_pairs(key, positions[token], 50.0, interleaved)
        if slot >= 0:
            wanted[slot // BS, slot % BS] = torch.tensor(both, dtype=torch.float64)
    torch.testing.assert_close(cache, wanted, equal_nan=True, **CLOSE)
    expected = torch.tensor([normed(row[:Q], q_norm, 0.01) for row in before], dtype=torch.float64)
    torch.testing.assert_close(q_out, expected, **CLOSE)
    assert torch.equal(down, before)


@pytest.mark.parametrize("interleaved", [False, True])
def test_of_queries_only_the_last_elements_turn_in_place(interleaved):
    rows = draw(3, 2 * 7 + 5)
    before, positions = rows.clone(), [4, 0, 9]
    q = rows[:, : 2 * 7].unflatten(1, (2, 7))
    result = OPS.rotate_queries(q, Rope(50.0).cos_sin(10, P), torch.tensor(positions), interleaved)
    assert result.data_ptr() == rows.data_ptr()
    for token, position in enumerate(positions):
        for head in range(2):
            given = before[token, 7 * head : 7 * head + 7].tolist()
            wanted = given[:-P] + turned_pairs(given[-P:], position, 50.0, interleaved)
            torch.testing.assert_close(q[token, head], torch.tensor(wanted, dtype=torch.float64), **CLOSE)
    assert torch.equal(rows[:, 14:], before[:, 14:])


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_of_turned_queries_and_keys_depend_on_distance_only(interleaved):
    q, k, table = draw(1, 1, P), draw(1, R + P, seed=1), Rope(50.0).cos_sin(30, P)

    def score(at, before):
        cache = torch.zeros(1, BS, R + P, dtype=torch.float64)
        OPS.write_latents(
            k, table, torch.tensor([before]), cache, torch.tensor([1]), torch.ones(R), eps=0.0, interleaved=interleaved
        )
        return float(OPS.rotate_queries(q.clone(), table, torch.tensor([at]), interleaved)[0, 0] @ cache[0, 1, R:])

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_nothing_happens_to_a_step_without_tokens():
    k_cache, v_cache = (torch.ones(2, BS, KH, D) for _ in range(2))
    none = torch.zeros(0, dtype=torch.int64)
    qkv = torch.zeros(0, (H + 2 * KH) * D)
    table = Rope().cos_sin(2, D)
    q = OPS.rotate_and_write(qkv, table, none, k_cache, v_cache, none, num_heads=H, num_kv_heads=KH)
    assert q.shape == (0, H, D)
    assert (k_cache == 1).all()
    latents = torch.ones(2, BS, R + P)
    OPS.write_latents(
        torch.zeros(0, R + P), Rope().cos_sin(2, P), none, latents, none, torch.ones(R), eps=0.1, interleaved=True
    )
    assert (latents == 1).all()
    assert OPS.rotate_queries(torch.zeros(0, 2, 7), Rope().cos_sin(2, P), none, True).shape == (0, 2, 7)
    assert OPS.norm(torch.zeros(0, 5), torch.ones(5), 0.1).shape == (0, 5)
