"""The verb `generate`: a completion a prompt, and everything wrong with a call said with its exit code."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from experiments import exits  # noqa: E402
from experiments.cli import main  # noqa: E402
from tests.engine.worker.tiny import CONFIG  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A configuration; weights are drawn."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def call(model, *words):
    fixed = ["--backend", "cpu", "--block-size", "4", "--weights-seed", "1"]
    fixed += [] if "--num-blocks" in words else ["--num-blocks", "20"]
    return main(["generate", "-m", model, *words, *fixed])


def test_one_json_object_says_tokens_engine_and_pool(model, capsys):
    assert call(model, "1,2,3", "4", "--token-ids", "--max-tokens", "5", "-n", "2", "--json") == exits.OK
    said = json.loads(capsys.readouterr().out)
    assert [answer["prompt_token_ids"] for answer in said["answers"]] == [[1, 2, 3], [4]]
    assert [[len(one["token_ids"]) for one in answer["outputs"]] for answer in said["answers"]] == [[5, 5], [5, 5]]
    assert said["engine"]["device_type"] == "cpu"
    assert said["engine"]["weights"]["seed"] == 1
    pool = {"allocator": "paged", "block_size": 4, "why": "as requested", "num_blocks": 20, "budget": None}
    assert said["pool"] == pool


def test_a_configuration_stands_for_its_folder(model, capsys):
    assert call(model + "/config.json", "7", "--token-ids", "--max-tokens", "3") == exits.OK
    head, *tokens = capsys.readouterr().out.split(") ")
    assert head == "[0.0] (length, 3 tokens"
    assert len(tokens[0].split()) == 3


@pytest.mark.parametrize("allocator", ["orca-max", "orca-oracle"])
def test_allocators_agree(model, allocator, capsys):
    words = ("5,6,7", "8,9", "--token-ids", "--max-tokens", "6", "--temperature", "0.9", "--seed", "3", "--json")
    assert call(model, *words) == exits.OK
    paged = json.loads(capsys.readouterr().out)["answers"]
    assert call(model, *words, "--allocator", allocator, "--kernel", "contiguous") == exits.OK
    assert json.loads(capsys.readouterr().out)["answers"] == paged


def said(model, capsys, *words):
    assert call(model, "5,6,7,8,9,1", "8,9", "--token-ids", "--max-tokens", "6", *words, "--json") == exits.OK
    return json.loads(capsys.readouterr().out)


def test_samples_are_the_same_forked_or_not_and_memory_says_what_was_shared(model, capsys):
    words = ("--n", "3", "--temperature", "0.9")
    forked, requests = (said(model, capsys, *words, "--samples", how) for how in ("fork", "requests"))
    assert forked["answers"] == requests["answers"]
    assert forked["memory"]["copied_blocks"] > 0
    assert forked["memory"]["most_shared_blocks"] > 0
    assert requests["memory"]["copied_blocks"] == 0


def test_swapping_changes_no_answer_and_is_counted(model, capsys):
    words = ("-n", "3", "--temperature", "0.9", "--num-blocks", "8")
    again = said(model, capsys, *words)
    swapped = said(model, capsys, *words, "--preemption", "swap", "--host-blocks", "12")
    assert swapped["answers"] == again["answers"]
    assert again["memory"]["num_preemptions"] > 0
    assert (again["memory"]["swapped_out_blocks"], again["memory"]["host_blocks"]) == (0, 0)
    assert swapped["memory"]["swapped_in_blocks"] >= swapped["memory"]["swapped_out_blocks"] > 0
    assert swapped["memory"]["host_blocks"] == 12


def test_a_search_gives_its_beams_best_first_with_their_scores(model, capsys):
    search = said(model, capsys, "--beam-width", "3", "--early-stopping", "never", "--length-penalty", "0.5")
    for answer in search["answers"]:
        scores = [one["score"] for one in answer["outputs"]]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert all(one["cumulative_logprob"] < one["score"] < 0 for one in answer["outputs"])
    assert call(model, "5", "--token-ids", "--max-tokens", "2", "--beam-width", "2") == exits.OK
    shown = capsys.readouterr()
    assert shown.out.startswith("[0.0] (length, 2 tokens, score -")
    assert "blocks saved by sharing" in shown.err


@pytest.mark.parametrize("name", ["reference", "reference-pallas"])
def test_the_attention_backend_that_was_asked_for_computes_and_is_named(model, name, capsys):
    words = ("1,2,3", "4", "--token-ids", "--max-tokens", "5")
    assert call(model, *words, "--json") == exits.OK
    own = json.loads(capsys.readouterr().out)
    assert call(model, *words, "--attention", name, "--json") == exits.OK
    asked = json.loads(capsys.readouterr().out)
    assert (own["engine"]["attention"], asked["engine"]["attention"]) == ("reference", name)
    assert asked["answers"] == own["answers"]
    assert call(model, *words, "--attention", name) == exits.OK
    assert f"by attention {name} on cpu" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["trition", "", "reference-mla", "reference-flash-mla", "reference-flashinfer"])
def test_an_attention_backend_is_refused_as_run_refuses_it(model, name, tmp_path, capsys):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ns,num_prompt_tokens,num_output_tokens\n0,4,4\n")
    words = ("--backend", "cpu", "--trace", str(trace), "-m", model, "--kv-tokens", "80", "--weights-seed", "1")
    assert main(["run", *words, "--block-size", "4", "--attention", name, "-o", str(tmp_path / "o")]) == exits.USAGE
    refused = capsys.readouterr().err.splitlines()[-1]
    assert call(model, "1", "--token-ids", "--attention", name) == exits.USAGE
    assert capsys.readouterr().err.splitlines()[-1] == refused
    assert refused.startswith("pagelab: ")
    assert "attention backend" in refused or name in refused


@pytest.mark.parametrize(
    "words, complaint",
    [
        ((), "at least one prompt"),
        (("text",), "has no tokenizer"),
        (("1,x", "--token-ids"), "comma list of whole numbers, got '1,x'"),
        (("1,96", "--token-ids"), "token 96 is outside"),
        (("1", "--token-ids", "--temperature", "-1"), "temperature"),
        (("1", "--token-ids", "--allocator", "pagedd"), "did you mean 'paged'"),
        (("1", "--token-ids", "--kernel", "contiguous"), "not adjacent"),
        (("1", "--token-ids", "--kernel", "page"), "unknown kernel 'page'"),
        (("1", "--token-ids", "--max-tokens", "0"), "pagelab: --max-tokens: expected a whole number of at least 1"),
        (("1", "--token-ids", "--kv-scales", ""), "--kv-scales: expected unit, per-head, per-tensor, or the name of a"),
        (("1", "--token-ids", "--kv-scales", "per-head"), "--kv-scales=per-head: K and V are stored as they are"),
        (("1", "--token-ids", "--kv-scales", "x", "--kv-dtype", "fp8"), "--kv-scales: expected unit, per-head, "),
        (("1", "--token-ids", "--max-num-seqs", "0"), "--max-num-seqs: expected a whole number of at least 1, got 0"),
        (("1", "--token-ids", "--tp", "0"), "--tensor-parallel-size: expected a whole number of at least 1, got 0"),
        (("1", "--token-ids", "--max-model-len", "-1"), "--max-model-len: expected a whole number"),
        (("1", "--token-ids", "-n", "65"), "n=65 sequences run together, and max_num_seqs is 64"),
        (("1", "--token-ids", "--samples", "both"), "--samples knows fork, requests, got 'both'"),
        (("1", "--token-ids", "--preemption", "drop"), "--preemption knows recompute, swap, auto"),
        (("1", "--token-ids", "--early-stopping", "no!", "--beam-width", "2"), "--early-stopping knows yes, no, never"),
        (("1", "--token-ids", "--beam-width", "2", "--temperature", "1"), "leave --temperature 1 out"),
        (("1", "--token-ids", "--beam-width", "2", "-n", "2"), "leave -n 2 out"),
        (("1", "--token-ids", "--length-penalty", "2"), "give a beam_width"),
        (("1", "--token-ids", "-n", "2", "--allocator", "contiguous-chunk(8)-best-fit"), "serves no groups"),
        (("1", "--token-ids", "--preemption", "swap", "--allocator", "orca-max"), "orca-max swaps nothing"),
        (("1", "--token-ids", "--host-blocks", "4"), "with 'recompute' nothing is swapped"),
    ],
)
def test_mistakes_are_the_users(model, words, complaint, capsys):
    assert call(model, *words) == exits.USAGE
    assert complaint in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about a machine without a CUDA device")
def test_without_a_gpu_the_gpu_is_missing_and_the_message_says_what_to_do(model, capsys):
    assert main(["generate", "-m", model, "1", "--token-ids", "--backend", "gpu"]) == exits.NO_DEVICE
    assert "--backend cpu runs the same engine" in capsys.readouterr().err


def test_an_unknown_backend_is_refused(model, capsys):
    assert main(["generate", "-m", model, "1", "--token-ids", "--backend", "tpu"]) == exits.USAGE
    assert "--backend knows cpu, gpu" in capsys.readouterr().err
