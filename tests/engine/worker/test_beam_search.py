"""The choice of beams on the host: against the textbook's search, and the contract of places."""

from __future__ import annotations

import numpy as np
import pytest

from engine.worker.beam_search import BeamParams, BeamSearch

VOCAB = 12


def logprobs_after(sequence, seed):
    """Log-probabilities of a made-up model that remembers everything."""
    rng = np.random.default_rng([seed, *sequence])
    logits = rng.normal(size=VOCAB) * 2
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def search(params, seed):
    """Runs one over the made-up model with all tokens as candidates; (search, parents of each step)."""
    made, sequences, history = BeamSearch(params), [[]], []
    while True:
        scores = np.stack([logprobs_after(one, seed) for one in sequences])
        order = np.argsort(-scores, axis=1, kind="stable")
        survivors = made.step(np.take_along_axis(scores, order, 1), order)
        if survivors is None:
            return made, history
        history.append(survivors.parents)
        sequences = [[*sequences[p], t] for p, t in zip(survivors.parents, survivors.tokens, strict=True)]


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_without_ends_the_best_prefixes_of_each_length_live_on(seed, width):
    """The textbook's search, over prefixes as tuples."""
    length, beams = 6, {(): 0.0}
    for _ in range(length):
        longer = {
            (*prefix, token): total + float(logprob)
            for prefix, total in beams.items()
            for token, logprob in enumerate(logprobs_after(prefix, seed))
        }
        beams = dict(sorted(longer.items(), key=lambda item: -item[1])[:width])
    found, _ = search(BeamParams(width, length), seed)
    assert [tuple(one.tokens) for one in found.hypotheses] == list(beams)
    assert [one.cumulative_logprob for one in found.hypotheses] == pytest.approx(list(beams.values()), rel=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_beam_that_goes_on_keeps_its_place(seed):
    _, history = search(BeamParams(4, 9), seed)
    assert history[0] == [0, 0, 0, 0]
    for parents in history:
        assert all(parents[parent] == parent for parent in parents)
    assert any(parents != list(range(4)) for parents in history[1:])


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("early", [True, False, "never"])
def test_hypotheses_are_the_best_that_were_finished_in_order(penalty, early):
    for seed in range(4):
        params = BeamParams(3, 7, frozenset({0}), penalty, early)
        found, history = search(params, seed)
        assert found.full
        assert len(history) < 7
        scores = [one.score for one in found.hypotheses]
        assert scores == sorted(scores, reverse=True)
        for one in found.hypotheses:
            assert one.score == pytest.approx(one.cumulative_logprob / len(one.tokens) ** penalty)
            assert 0 not in one.tokens[:-1]
            assert one.tokens[-1] == 0 or len(one.tokens) == 7
            total = sum(logprobs_after(one.tokens[:i], seed)[token] for i, token in enumerate(one.tokens))
            assert one.cumulative_logprob == pytest.approx(float(total), rel=1e-5)


def test_never_looks_on_as_long_as_anything_could_win():
    lengths = {}
    for early in (True, False, "never"):
        lengths[early] = [len(search(BeamParams(2, 12, frozenset({0}), 1.0, early), seed)[1]) for seed in range(12)]
    pairs = zip(lengths[True], lengths[False], lengths["never"], strict=True)
    assert all(one <= two <= three for one, two, three in pairs)
    assert lengths[True] != lengths[False]
    assert lengths[False] != lengths["never"]


def test_a_token_that_is_impossible_is_not_chosen():
    made = BeamSearch(BeamParams(2, 5))
    scores = np.array([[-0.5, -1.0, np.nan, -np.inf]], np.float32)
    survivors = made.step(scores, np.array([[3, 1, 2, 0]]))
    assert sorted(survivors.tokens) == [1, 3]


@pytest.mark.parametrize("shape", [(2, 4), (1, 3)])
def test_candidates_of_another_search_are_refused(shape):
    with pytest.raises(ValueError, match="candidates for 1 beams"):
        BeamSearch(BeamParams(2, 5)).step(np.zeros(shape, np.float32), np.zeros(shape, np.int64))


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"width": 0}, "beam_width: expected at least 1"),
        ({"early_stopping": None}, "early_stopping: expected True, False or 'never'"),
        ({"length_penalty": float("inf")}, "length_penalty: expected a number"),
        ({"length_penalty": "1"}, "length_penalty: expected a number"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        BeamParams(**{"width": 2, "max_tokens": 4} | options)
