"""The stand-ins accept themselves: means, medians, p90 and p99 of the paper's two length sets."""

from collections.abc import Callable

import numpy as np
import pytest

from workloads.standins import STANDINS, Pairs

N = 1_000_000
TARGETS = {
    "sharegpt": ((161.31, 35, 507, 1464), (337.99, 271, 754, 1280)),
    "alpaca": ((19.312, 16, 30, 74), (58.452, 43, 125, 268)),
}
Draw = Callable[[int, int], Pairs]


@pytest.mark.parametrize("name", list(STANDINS))
def test_a_stand_in_has_the_moments_and_quantiles_of_its_set(name: str):
    mean_tolerance = 0.015 if name.endswith("-grid") else 0.01

    drawn = STANDINS[name](N, 1)

    for tokens, (mean, p50, p90, p99) in zip(drawn, TARGETS[name.removesuffix("-grid")], strict=True):
        assert tokens.mean() == pytest.approx(mean, rel=mean_tolerance)
        assert np.percentile(tokens, [50, 90]) == pytest.approx([p50, p90], rel=0.12)
        assert np.percentile(tokens, 99) == pytest.approx(p99, rel=0.20)


@pytest.mark.parametrize("name", list(STANDINS))
def test_a_stand_in_gives_whole_positive_pairs_decided_by_the_seed(name: str):
    draw = STANDINS[name]

    prompt, output = draw(3000, 5)

    assert (prompt.dtype, output.dtype, len(prompt), len(output)) == (np.int64, np.int64, 3000, 3000)
    assert min(prompt.min(), output.min()) >= 1
    assert [column.tolist() for column in draw(3000, 5)] == [prompt.tolist(), output.tolist()]
    assert draw(3000, 6)[0].tolist() != prompt.tolist()


def test_sharegpt_pairs_fit_the_context_and_alpaca_pairs_their_caps():
    prompt, output = STANDINS["sharegpt"](100_000, 2)
    short, answer = STANDINS["alpaca"](100_000, 2)

    assert (prompt + output).max() <= 2048
    assert short.min() >= 5
    assert short.max() <= 508
    assert answer.max() <= 1470


def test_the_alpaca_stand_in_has_short_answers_to_long_prompts():
    # Real Spearman -0.22: instructions with an input ask for less text.
    prompt, output = (np.argsort(np.argsort(column)) for column in STANDINS["alpaca"](100_000, 3))

    assert np.corrcoef(prompt, output)[0, 1] == pytest.approx(-0.22, abs=0.1)
