"""Random weights have the shapes of the real ones, count the same, and are the same again for the same seed."""

import pytest
import torch

from engine.core import catalogue
from engine.core.model_shape import read_model_shape
from engine.core.parameters import num_parameters
from engine.model import architecture_of, load_model, random_weights
from tests.engine.model.test_architecture import DEEPSEEK, LLAMA, OPT

DENSE = [
    name
    for name in catalogue.model_names()
    if catalogue.entry(name)[1]["model_type"] in ("llama", "mistral", "opt", "qwen2", "qwen3")
]


@pytest.mark.parametrize("name", DENSE)
def test_a_catalogue_model_has_as_many_parameters_as_are_counted_without_it(name):
    model = load_model(name, seed=0, device="meta")
    assert model.weights.num_parameters == num_parameters(catalogue.lookup(name))
    assert model.weights.num_bytes == 2 * model.weights.num_parameters
    assert all(tensor.is_meta and tensor.dtype == model.architecture.torch_dtype for tensor in model.weights.tensors())
    assert (model.provenance.kind, model.provenance.seed, model.tokenizer) == ("random", 0, None)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"q_lora_rank": None, "tie_word_embeddings": True},
        {"attention_bias": True, "n_routed_experts": 256, "first_k_dense_replace": 5},
        {"model_type": "deepseek_v2", "mlp_bias": True, "n_routed_experts": None, "first_k_dense_replace": 0},
    ],
    ids=str,
)
def test_latent_attention_has_as_many_parameters_as_are_counted_without_it(change):
    config = {**DEEPSEEK, **change}
    weights = random_weights(architecture_of(config, "here"), seed=0, device="meta")
    assert weights.num_parameters == num_parameters(read_model_shape(config))


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK, OPT], ids=["llama", "deepseek", "opt"])
def test_equal_seeds_give_equal_weights_and_others_do_not(config):
    a = architecture_of(config, "here")
    once, again, other = (random_weights(a, seed=seed, dtype=torch.float32) for seed in (1, 1, 2))
    for x, y, z in zip(once.tensors(), again.tensors(), other.tensors(), strict=True):
        assert torch.equal(x, y)
        assert not torch.equal(x, z)
    assert len({tuple(tensor.flatten()[:8].tolist()) for tensor in once.tensors()}) == len(list(once.tensors()))


def test_a_tied_head_is_the_embedding_and_is_counted_once():
    tied = random_weights(architecture_of({**LLAMA, "tie_word_embeddings": True}, "here"), seed=0)
    apart = random_weights(architecture_of(LLAMA, "here"), seed=0)
    assert tied.lm_head is tied.embedding
    assert apart.num_parameters - tied.num_parameters == tied.embedding.numel()


def test_rows_of_random_matrices_keep_the_size_of_what_they_multiply():
    weights = random_weights(architecture_of({**LLAMA, "hidden_size": 512}, "here"), seed=0, dtype=torch.float32)
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    for matrix in (weights.layers[0].qkv, weights.layers[0].gate_up, weights.lm_head):
        assert (x @ matrix.T).std() == pytest.approx(1.0, abs=0.05)


def test_a_catalogue_model_without_a_seed_is_refused_because_there_is_nothing_to_load():
    with pytest.raises(ValueError, match="llama-3-8b: the catalogue has no weights; give a seed"):
        load_model("meta-llama/Meta-Llama-3-8B")
