"""Variables as a layer of the configuration: their place among the others, and mistakes that are not passed over."""

import json

import pytest

from experiments.config import leaf_keys, resolve_layers
from experiments.environment import keys_by_variable, read_variables, variable_of
from experiments.exits import UsageError
from experiments.flags import Flags


def resolved(variables, *, config=(), set=(), **flags):  # noqa: A002 - the flag's name
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return resolve_layers(Flags(config=config, set=set, **flags).layers())


def test_flags_win_over_set_over_variables_over_files_over_defaults(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_text("[kv]\nblock_size = 8\n[scheduler]\nmax_num_seqs = 7\nmax_num_batched_tokens = 300\n")
    said = {"PAGELAB_KV__BLOCK_SIZE": "32", "PAGELAB_SCHEDULER__MAX_NUM_SEQS": "9"}
    assert resolved({}).kv.block_size is None
    assert resolved({}, config=(path,)).kv.block_size == (8,)
    assert resolved(said, config=(path,)).kv.block_size == (32,)
    assert resolved(said, config=(path,), set=("kv.block_size=64",)).kv.block_size == (64,)
    whole = resolved(said, config=(path,), set=("kv.block_size=64",), block_size="128")
    assert whole.kv.block_size == (128,)
    assert (whole.scheduler.max_num_seqs, whole.scheduler.max_num_batched_tokens) == (9, 300)


def test_every_key_has_a_variable_and_every_variable_one_key():
    known = keys_by_variable()
    keys = {key for key in leaf_keys().values() if "." in key} | {"seed", "num_runs", "schema_version"}
    assert keys <= set(known.values())
    assert len(set(known.values())) == len(known)
    assert all(variable_of(key) == name for name, key in known.items())


@pytest.mark.parametrize(
    "name,value,parts",
    [
        ("PAGELAB_KV__BLOCK_SISE", "32", ("variable PAGELAB_KV__BLOCK_SISE", "did you mean kv.block_size?")),
        ("PAGELAB_KV__MAX_NUM_SEQS", "32", ("did you mean scheduler.max_num_seqs?",)),
        ("PAGELAB_KW__BLOCK_SIZE", "32", ("kw.block_size: unknown key; did you mean kv.block_size?",)),
        ("PAGELAB_KV_BLOCK_SIZE", "32", ("two underscores between them: PAGELAB_KV__BLOCK_SIZE",)),
        ("PAGELAB_BLOCK_SIZE", "32", ("two underscores between them: PAGELAB_KV__BLOCK_SIZE",)),
        ("PAGELAB_BLOCKSIZE", "32", ("two underscores between them: PAGELAB_KV__BLOCK_SIZE",)),
        ("PAGELAB_NAME", "chat", ("PAGELAB_MODEL__NAME or PAGELAB_WORKLOAD__NAME",)),
        ("PAGELAB_FLEET", "3", ("PAGELAB_FLEET__KEY",)),
        ("PAGELAB_KV", "{block_size=32}", ("PAGELAB_KV__KEY",)),
        ("PAGELAB_KV__BLOCK_SIZE", "many", ("variable PAGELAB_KV__BLOCK_SIZE: kv.block_size", "'many'")),
        ("PAGELAB_MEASURE__END_S", "900ms", ("variable PAGELAB_MEASURE__END_S", "write 0.9 instead")),
        ("PAGELAB_SEED", "one", ("variable PAGELAB_SEED: seed",)),
    ],
)
def test_a_slip_is_told_with_the_variable_and_what_was_meant(name, value, parts):
    with pytest.raises(UsageError) as caught:
        resolved({name: value})
    for part in parts:
        assert part in str(caught.value)


def test_variables_that_are_no_keys_say_nothing():
    others = {"PAGELAB_GPU": "1", "PAGELAB_DATA": "/x", "HOME": "/root", "KV__BLOCK_SIZE": "8", "pagelab_kv__x": "1"}
    assert read_variables(others).values == {}


def test_a_run_has_the_value_of_the_variable_in_all_that_it_writes(small, tmp_path, monkeypatch, strict_object):
    monkeypatch.setenv("PAGELAB_KV__BLOCK_SIZE", "32")
    answer = strict_object(small("run", "-o", "out", "--no-report", "--json").out)
    assert answer["runs"][0]["block_size"] == 32
    assert "block_size = [32]" in (tmp_path / "out/config.resolved.toml").read_text()
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["variables"] == {"PAGELAB_KV__BLOCK_SIZE": "32"}
    assert manifest["config"]["kv"]["block_size"] == [32]
    again = strict_object(small("run", "--block-size", "8", "--json").out)
    assert again["runs"][0]["block_size"] == 8
    monkeypatch.setenv("PAGELAB_KV__BLOCK_SISE", "32")
    refused = small("run", "-o", "other")
    assert (refused.code, "did you mean kv.block_size?" in refused.err) == (2, True)


def test_a_sweep_is_resumed_whatever_the_environment_says_now(small, pagelab, monkeypatch):
    assert small("sweep", "--axis", "kv.block_size=8,16", "-o", "out", "--jobs", "1").code == 0
    monkeypatch.setenv("PAGELAB_SCHEDULER__MAX_NUM_SEQS", "3")
    assert pagelab("sweep", "--resume", "-o", "out").code == 0
