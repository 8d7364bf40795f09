"""Files, --set and flags: who wins, and what a mistake is told."""

import pytest

from experiments import defaults
from experiments.config import resolve_layers, set_layer, to_toml
from experiments.exits import UsageError
from experiments.flags import Flags
from experiments.resolve import filled
from experiments.settings import Config
from workloads.named import RECIPES


@pytest.fixture
def toml(tmp_path):
    def write(text, name="exp.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def layered(*paths, set=(), **flags):  # noqa: A002 - the flag's name
    return resolve_layers(Flags(config=paths, set=set, **flags).layers())


def test_flags_win_over_set_over_files_over_defaults(toml):
    first = toml("[kv]\nblock_size = 8\nallocator = 'paged'\n[scheduler]\nmax_num_seqs = 7\npolicy = 'priority'")
    second = toml("[kv]\nblock_size = [4]", "more.toml")
    assert layered(first).kv.block_size == (8,)
    assert layered(first, second).kv.block_size == (4,)
    assert layered(first, second, set=("kv.block_size=2",)).kv.block_size == (2,)
    config = layered(first, second, set=("kv.block_size=2",), block_size="1,16")
    assert config.kv.block_size == (1, 16)
    whole = filled(config)
    assert (whole.scheduler.max_num_seqs, whole.scheduler.policy) == (7, "priority")
    assert whole.scheduler.max_num_batched_tokens == 2560


@pytest.mark.parametrize(
    "text,parts",
    [
        ("seed = 1\n[kv]\nblock_sise = 32", ("exp.toml:3", "kv.block_sise", "kv.block_size")),
        ("[kv]\nmax_num_seqs = 32", ("exp.toml:2", "scheduler.max_num_seqs")),
        ("[measure]\nend_ms = 900", ("exp.toml:2", "measure.end_s", "seconds")),
        ("[kv]\nheadroom_gb = 2", ("exp.toml:2", "kv.headroom_bytes", "bytes")),
        ("[sheduler]\npolicy = 'fcfs'", ("exp.toml:1", "did you mean [scheduler]")),
        ("[measure]\nend_s = '900ms'", ("exp.toml:2", "seconds", "0.9")),
        ("[kv]\nkv_bytes = '12G'", ("exp.toml:2", "GiB")),
        ("[kv]\nkv_bytes = 12", ("exp.toml:2", "12GiB")),
        ("[kv]\ngpu_memory_utilization = 92", ("exp.toml:2", "0.92")),
        ("[scheduler]\nwatermark = '1%'", ("exp.toml:2", "0.01")),
        ("[kv]\nnum_blocks = 0", ("exp.toml:2", "num_blocks", "0")),
        ("[kv]\nnum_blocks = 10\nkv_tokens = 10", ("num_blocks and kv_tokens",)),
        ("[workload]\nrequest_rate = nan", ("exp.toml:2", "request_rate")),
        ("[workload]\nname = 'paper-fig2'\ntrace = 'x.csv'", ("keep one",)),
        ("kv = 3", ("exp.toml", "[kv]")),
        ("seed = = 1", ("exp.toml", "line 1")),
    ],
)
def test_a_mistake_is_told_with_its_place_and_a_way_out(toml, text, parts):
    with pytest.raises(UsageError) as caught:
        layered(toml(text))
    for part in parts:
        assert part in str(caught.value)


def test_two_pins_on_one_command_line_are_refused_but_a_flag_replaces_the_files(toml):
    with pytest.raises(UsageError, match="keep one"):
        layered(num_blocks="10", kv_tokens="100")
    config = layered(toml("[kv]\nnum_blocks = 10"), kv_tokens="100")
    assert (config.kv.num_blocks, config.kv.kv_tokens) == (None, 100)


@pytest.mark.parametrize(
    "flag,value,part", [("window", "300ms:900ms", "0.3"), ("end", "15min", "900"), ("window", "9:3", "START")]
)
def test_flags_refuse_other_units_by_name(flag, value, part):
    with pytest.raises(UsageError, match=part) as caught:
        layered(**{flag: value})
    assert f"--{flag}" in str(caught.value)


def test_headroom_is_given_in_gb_and_kept_in_bytes():
    assert layered(headroom_gb="3").kv.headroom_bytes == 3 * 10**9
    with pytest.raises(ValueError, match="GB"):
        layered(headroom_gb="2147483648")


def test_bytes_may_name_their_unit():
    assert layered(kv_bytes="12GiB").kv.kv_bytes == 12 * 2**30
    assert layered(kv_bytes="12GB").kv.kv_bytes == 12 * 10**9


def test_set_knows_short_and_dotted_keys():
    assert resolve_layers([set_layer("block_size=1,8")]).kv.block_size == (1, 8)
    assert resolve_layers([set_layer("workload.lengths={sharegpt='a.csv'}")]).workload.lengths == {"sharegpt": "a.csv"}
    with pytest.raises(UsageError, match=r"did you mean kv\.block_size"):
        resolve_layers([set_layer("kv.blok_size=3")])
    with pytest.raises(UsageError, match="key=value"):
        set_layer("kv.block_size")


def test_filling_in_is_idempotent_and_survives_toml(toml):
    from experiments.config import dump

    whole = filled(Config())
    assert whole.kv.sweep == {"paged": (1, 8, 16, 32, 64, 128, 256)}
    assert filled(whole) == whole
    assert Config.load(toml(to_toml(dump(whole)))) == whole


def test_a_workload_brings_its_defaults_and_flags_override_them():
    paper = filled(Config())
    assert (paper.model.name, paper.model.gpu, paper.model.max_model_len) == ("opt-13b", "a100-40g", 2048)
    assert (paper.kv.capacity_rule, paper.measure.step_model) == ("sosp23", "paper-13b")
    assert (paper.measure.window_s, paper.measure.end_s) == ((300.0, 900.0), 900.0)
    other = filled(layered(end="none", window="arrivals", model="llama-2-13b", preset="vllm"))
    assert (other.measure.end_s, other.measure.window_s) == ("none", "arrivals")
    assert (other.kv.capacity_rule, other.measure.step_model) == ("default", "roofline")
    assert other.scheduler.enable_prefix_caching is True


def test_keywords_name_keys_by_their_last_part():
    config = Config.of(block_size=32, model="opt-13b", kv={"kv_tokens": 640})
    assert (config.kv.block_size, config.model.name, config.kv.kv_tokens) == ((32,), "opt-13b", 640)
    assert config.with_(num_blocks=3).kv.kv_tokens is None
    with pytest.raises(ValueError, match=r"did you mean kv\.block_size"):
        Config.of(blocksize=3)


@pytest.mark.parametrize("name,stop_s", [("paper-fig2", 900), ("paper-fig13a", 3600), ("paper-fig13b", 900)])
@pytest.mark.parametrize("rate", [None, 0.5, 8.0])
def test_a_workloads_window_holds_while_its_requests_arrive(name, stop_s, rate):
    """Of fewer requests the time of arrivals, with a note; a window that is asked for always."""
    per_s = rate or RECIPES[name].rate_per_s
    enough, few = int(per_s * stop_s * 0.95), int(per_s * stop_s * 0.8)
    for count, window in ((None, "named"), (enough, "named"), (few, "arrivals"), (5, "arrivals")):
        config = Config.of(workload=name, num_requests=count, request_rate=rate, allocator="paged")
        made = filled(config).measure.window_s
        assert made == (defaults.OF_WORKLOAD[name].window_s if window == "named" else "arrivals"), count
        notes = defaults.window_notes(filled(config).workload, made)
        assert bool(notes) is (window == "arrivals")
        asked = Config.of(workload=name, num_requests=count, request_rate=rate, allocator="paged", window="300:500")
        assert filled(asked).measure.window_s == (300.0, 500.0)
        assert filled(filled(config)) == filled(config)
