"""Logits equal Hugging Face's in float32: whole prompts, and chunks and decodes over shuffled block tables."""

import os
from dataclasses import replace

import pytest
import torch

from engine.attention import BACKENDS, get_backend
from engine.model import Decoder, TorchOps, load_model
from engine.model.kernels.triton_ops import TritonOps
from tests.engine.model.paged import PagedKV, Runner
from tests.engine.model.tiny import CONFIGS, hugging_face, logits_of, text

pytest.importorskip("transformers", reason="the reference extra is not installed")
TOLERANCE = 1e-4

WAYS = {"torch": (TorchOps, "reference"), "triton": (TritonOps, "triton")}
"""Small operations and the attention backend that they run with."""
LATENT_BACKENDS = {
    way: next((name for name, one in BACKENDS.items() if name.startswith(backend) and one.capabilities().mla), None)
    for way, (_, backend) in WAYS.items()
}
"""The same for models that cache latents; None: the registry has none, and the specification takes its place."""
DEVICES = {"torch": "cpu", "triton": "cuda" if os.environ.get("PAGELAB_GPU") == "1" else "cpu"}
"""Triton's kernels run in the interpreter, or on the device where they are compiled."""
LENGTHS = {"torch": (23, 15, 13), "triton": (14, 10)}
CHUNKS = {
    "torch": [{0: 5}, {0: 6, 1: 9}, {0: 1, 1: 3, 2: 2}, {0: 1, 1: 1, 2: 9}, {0: 1, 1: 1, 2: 1}, {1: 1, 2: 1}, {0: 9}],
    "triton": [{0: 6}, {0: 5, 1: 4}, {0: 1, 1: 5}, {0: 1, 1: 1}, {0: 1}],
}
INTERPRETED = ("llama-biases-wide-heads-tied", "mistral-window", "qwen3", "opt", "deepseek-v3")
"""The interpreter is slow: what differs in the small operations or in attention, not what only differs in a table."""
CASES = [(name, way) for name in CONFIGS for way in WAYS if way == "torch" or name in INTERPRETED]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """From a name and a device to transformers' model, and what is loaded there from the folder that it saved to."""
    models, loaded = {}, {}

    def get(name, device="cpu"):
        if name not in models:
            models[name] = hugging_face(name), tmp_path_factory.mktemp(name)
            models[name][0].save_pretrained(models[name][1], safe_serialization=True)
        if (name, device) not in loaded:
            loaded[name, device] = load_model(models[name][1], dtype=torch.float32, device=device)
        return models[name][0], loaded[name, device]

    return get


def runner_of(way, loaded, sequences, **options):
    ops, backend = WAYS[way]
    if loaded.architecture.latent is not None:
        backend = LATENT_BACKENDS[way] or LATENT_BACKENDS["torch"]
    reason = get_backend(backend).unavailable_because()
    if reason:
        pytest.skip(reason)
    return Runner(loaded.architecture, loaded.weights, ops(), backend, sequences, **options)


def furthest(got, model, sequences):
    """The largest difference of any logit; NaN if any is."""
    expected = [logits_of(model, tokens) for tokens in sequences]
    assert min(logits.std() for logits in expected) > 0.3, "logits too small for the tolerance to mean anything"
    return float(torch.stack([(a - b).abs().max() for a, b in zip(got, expected, strict=True)]).max())


@pytest.mark.parametrize("name,way", CASES)
def test_a_whole_prompt_gives_their_logits(name, way, saved):
    model, loaded = saved(name, DEVICES[way])
    tokens = text(30, seed=1)
    runner = runner_of(way, loaded, [tokens], block_size=16)
    assert furthest(runner.run([{0: len(tokens)}]), model, [tokens]) <= TOLERANCE


@pytest.mark.parametrize("name,way", CASES)
def test_chunks_and_decodes_over_shuffled_blocks_give_their_logits(name, way, saved):
    model, loaded = saved(name, DEVICES[way])
    sequences = [text(length, seed=length) for length in LENGTHS[way]]
    runner = runner_of(way, loaded, sequences)
    assert furthest(runner.run(CHUNKS[way]), model, sequences) <= TOLERANCE


@pytest.mark.parametrize(
    "name,change",
    [
        ("llama", lambda a: {"norm_eps": 1e-3}),
        ("llama-rope-llama3", lambda a: {"rope": replace(a.rope, scaling="default")}),
        ("llama-rope-llama3", lambda a: {"rope": replace(a.rope, original_length=24)}),
        ("llama-rope-linear", lambda a: {"rope": replace(a.rope, factor=4.1)}),
        ("mistral-window", lambda a: {"windows": (6, 7)}),
        ("mistral-window", lambda a: {"windows": (7, 8)}),
        ("qwen2-window-above", lambda a: {"windows": (5, 0)}),
        ("qwen3-window-by-layer", lambda a: {"windows": (7, 0)}),
        ("llama-rope-yarn", lambda a: {"rope": replace(a.rope, magnitude=1.0)}),
        ("llama-rope-yarn", lambda a: {"rope": replace(a.rope, truncate=False)}),
        ("llama-rope-yarn", lambda a: {"rope": replace(a.rope, beta_slow=0.1)}),
        ("deepseek-v3", lambda a: {"latent": replace(a.latent, scale=24**-0.5)}),
        ("deepseek-v3", lambda a: {"latent": replace(a.latent, interleaved=False)}),
        ("deepseek-v3", lambda a: {"rope": replace(a.rope, magnitude=1.0)}),
        ("deepseek-v3-biases-halves", lambda a: {"latent": replace(a.latent, interleaved=True)}),
        ("opt", lambda a: {"position_offset": 1}),
        ("opt", lambda a: {"norm_eps": 1e-3}),
    ],
)
def test_a_model_that_is_a_little_different_gives_other_logits(name, change, saved):
    """What the tests above would notice."""
    model, loaded = saved(name)
    tokens = text(30, seed=1)
    other = replace(loaded, architecture=replace(loaded.architecture, **change(loaded.architecture)))
    assert furthest(runner_of("torch", other, [tokens]).run([{0: len(tokens)}]), model, [tokens]) > 5 * TOLERANCE


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_padded_tokens_change_nothing(name, saved):
    _, loaded = saved(name)
    tokens = text(6, seed=2)
    plain = runner_of("torch", loaded, [tokens])
    plain.step({0: 5})
    expected = plain.step({0: 1})[0]
    padded = runner_of("torch", loaded, [tokens])
    padded.step({0: 5})
    before = [padded.kv.views(layer)[0].clone() for layer in range(2)]
    metadata = padded.kv.builder.build([1], [6], [padded.tables[0]], num_padded_seqs=3)
    ids = torch.tensor([tokens[5], 0, 0, 0])
    hidden = padded.decoder.forward(ids, torch.tensor([5, 0, 0, 0]), metadata.slot_mapping, metadata)
    torch.testing.assert_close(padded.decoder.logits(hidden[:1]), expected, rtol=0, atol=TOLERANCE)
    for layer, old in enumerate(before):
        changed = (padded.kv.views(layer)[0] != old) & ~old.isnan() | (padded.kv.views(layer)[0].isnan() != old.isnan())
        assert changed.any((2, 3)).sum() == 1, "more slots than the one of the real token were written"


def test_results_of_every_step_lie_at_the_same_addresses(saved):
    _, loaded = saved("llama")
    runner = runner_of("torch", loaded, [text(9, seed=3)])
    decoder, places = runner.decoder, set()
    for start, count in ((0, 4), (4, 1), (5, 1), (6, 3)):
        metadata = runner.kv.builder.build([count], [start + count], runner.tables)
        positions = torch.arange(start, start + count)
        hidden = decoder.forward(positions, positions, metadata.slot_mapping, metadata)
        assert hidden.shape == (count, 64)
        places.add((hidden.data_ptr(), decoder.logits(hidden[-1:]).data_ptr()))
    assert len(places) == 1


def test_more_tokens_or_rows_than_there_are_buffers_for_are_refused(saved):
    _, loaded = saved("llama")
    kv = PagedKV(loaded.architecture, "reference", 4, 4)
    decoder = Decoder(loaded.architecture, loaded.weights, TorchOps(), kv, max_tokens=4, max_num_seqs=2)
    ids = torch.zeros(5, dtype=torch.int64)
    metadata = kv.builder.build([5], [5], [[1, 2]])
    with pytest.raises(ValueError, match="a step of 5 tokens in buffers for max_tokens=4"):
        decoder.forward(ids, ids, metadata.slot_mapping, metadata)
    with pytest.raises(ValueError, match="logits of 3 rows in a buffer for max_num_seqs=2"):
        decoder.logits(torch.zeros(3, 64))
    for limits in ({"max_tokens": 0}, {"max_tokens": 4, "max_num_seqs": 0}):
        with pytest.raises(ValueError, match="of at least 1, got 0"):
            Decoder(loaded.architecture, loaded.weights, TorchOps(), kv, **limits)
