"""A real language model: SmolLM2-135M from a quantised GGUF file continues text as transformers does."""

import pytest
import torch

from engine.model import TorchOps
from tests.engine.model import smollm2
from tests.engine.model.paged import Runner

pytestmark = smollm2.needed
NUM_TOKENS = 12
TIE = 1e-3
"""Another token is right only where transformers' two best logits are this close."""
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "1 2 3 4 5 6 7")


@pytest.fixture(scope="module")
def loaded():
    return smollm2.load()


def test_the_file_says_what_the_catalogue_says(loaded):
    a = loaded.architecture
    assert (a.family, a.num_layers, a.hidden_size, a.num_heads, a.num_kv_heads) == ("llama", 30, 576, 9, 3)
    assert a.tie_embeddings
    assert loaded.weights.num_parameters == 134_515_008
    assert loaded.provenance.kind == "gguf"
    assert loaded.provenance.notes == ()
    assert [loaded.tokenizer.token_id("<|im_end|>")] == list(a.eos_token_ids)


def test_greedy_continuations_are_those_of_transformers(loaded):
    pytest.importorskip("transformers", reason="the reference extra is not installed")
    model = smollm2.as_hugging_face(loaded)
    prompts = [loaded.tokenizer.encode(prompt) for prompt in PROMPTS]
    sequences = [
        model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NUM_TOKENS, use_cache=True)[0].tolist()
        for ids in prompts
    ]
    assert [len(full) - len(ids) for full, ids in zip(sequences, prompts, strict=True)] == [NUM_TOKENS] * 3
    runner = Runner(loaded.architecture, loaded.weights, TorchOps(), "reference", sequences, block_size=8)
    # Two chunks of each prompt, then decodes of all together: each step's best token is the next that they chose.
    halves = [len(ids) // 2 for ids in prompts]
    steps = [dict(enumerate(halves)), {row: len(ids) - halves[row] for row, ids in enumerate(prompts)}]
    steps += [dict.fromkeys(range(3), 1)] * NUM_TOKENS
    with torch.inference_mode():
        for full, ids, logits in zip(sequences, prompts, runner.run(steps), strict=True):
            for position in range(len(ids) - 1, len(full) - 1):
                best = logits[position].topk(2)
                wanted = full[position + 1]
                assert wanted == int(best.indices[0]) or float(best.values[0] - logits[position, wanted]) < TIE
    assert loaded.tokenizer.decode(sequences[0]).startswith("The capital of France is Paris")


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over 13 lazy dogs, doesn't it?",
        "  two spaces,\ttabs\n\nand\r\nnew lines  ",
        "Größe, naïve, 漢字, עברית, 🙂🏳️‍🌈",
        "<|im_start|>user\nHello<|im_end|>\n",
        "",
    ],
)
def test_text_comes_back_from_its_tokens(loaded, text):
    ids = loaded.tokenizer.encode(text)
    assert loaded.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < loaded.architecture.vocab_size for token in ids)


def test_digits_are_cut_one_by_one_and_marks_of_a_chat_are_single_tokens(loaded):
    ids = loaded.tokenizer.encode("2024")
    assert [loaded.tokenizer.decode([token]) for token in ids] == list("2024")
    assert loaded.tokenizer.encode("<|im_start|>user") == [1, *loaded.tokenizer.encode("user")]
    assert loaded.tokenizer.decode([1, *loaded.tokenizer.encode("user")]) == "user"
