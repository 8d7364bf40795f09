import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.cli import main
from workloads import save_trace, synthetic_trace

SMALL = ("--kv-tokens", "4000", "--step-model", "linear:0.02,0.0001,0.000001,0.0001", "--max-model-len", "2048")


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory):
    """Forty requests, as a file."""
    path = tmp_path_factory.mktemp("traces") / "small.csv"
    save_trace(synthetic_trace("poisson", "uniform:20-200,5-60", 40, 3, rate_per_s=8.0), path)
    return path


@pytest.fixture
def pagelab(capsys, monkeypatch, tmp_path):
    """Runs a command line in an empty folder; the exit code and what went to stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


@pytest.fixture
def small(pagelab, trace_file):
    """`pagelab VERB` on the small trace in a small pool."""

    def call(verb, *words):
        return pagelab(verb, "--trace", trace_file, *SMALL, *words)

    return call


@pytest.fixture
def strict_object():
    """Parses exactly one strict JSON object."""

    def parse(text):
        def refuse(word):
            raise AssertionError(f"{word} is not strict JSON")

        value = json.loads(text, parse_constant=refuse)
        assert isinstance(value, dict)
        return value

    return parse


@pytest.fixture
def tree():
    """All files of a folder but the manifest, by name, with their bytes."""

    def read(folder: Path):
        paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json")
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    return read


TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with the config.json of a model that a CPU runs in milliseconds a step; it has no weights."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder
