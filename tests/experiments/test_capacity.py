"""`pagelab capacity`: the chapter's exercise by the right command, levers, traps, and what a replay holds."""

import pytest

from engine.core.allocator import Refusal
from engine.core.registry import PoolConfig, make_allocator
from engine.core.request import Request

EXERCISE = (
    *("capacity", "-m", "llama-3-70b", "--gpu", "a100-80g", "--tp", "2", "--rule", "chapter"),
    *("--mean-prompt-len", "800", "--mean-output-len", "256", "--concurrency", "32"),
)


@pytest.fixture
def exercise(pagelab, strict_object):
    """The JSON of the chapter's exercise with more flags."""
    return lambda *more: strict_object(pagelab(*EXERCISE, *more, "--json").out)


def test_the_right_command_prints_2112_of_2457(pagelab, exercise):
    printed = pagelab(*EXERCISE)
    fits = {fit["rule"]: fit for fit in exercise()["demand"]["fits"]}

    assert printed.code == 0
    assert "32 x 1056 = 33,792 tokens" in printed.out
    assert any("2,112" in line and "2,457" in line and "86.0 %" in line for line in printed.out.splitlines())
    assert {name: fit["num_blocks"] for name, fit in fits.items()} == {
        "chapter-gib": 2457,
        "chapter-gb": 2288,
        "chapter-mixed": 4426,
    }
    assert {fit["blocks_needed"] for fit in fits.values()} == {2112}
    assert [fit["largest_concurrency"] for fit in fits.values()] == [37, 34, 67]


def test_there_is_a_row_for_each_lever(exercise):
    rows = {row["lever"]: row for row in exercise()["what_if"]}
    most = {name: row["largest_concurrency"] for name, row in rows.items()}

    assert list(rows) == [
        *("as asked", "shorter context", "more tensor parallelism", "more pipeline stages", "narrower KV"),
        *("larger GPU", "preemption"),
    ]
    assert all(most[name] > most["as asked"] for name in rows if name != "as asked")
    assert rows["narrower KV"]["num_blocks"] == 6 * 2**30 // (16 * 81_920)
    assert rows["larger GPU"]["change"] == "h200-141g"


def test_more_ranks_are_the_same_rule_with_more_ranks(pagelab, strict_object, exercise):
    rows = {row["change"]: row["num_blocks"] for row in exercise()["what_if"]}
    for flag, change in (("--tp", "tp=4"), ("--pp", "pp=2")):
        words = [word for word in EXERCISE if flag != "--tp" or word not in ("--tp", "2")]
        asked = strict_object(pagelab(*words, flag, change[-1], "--json").out)
        assert asked["num_blocks"] == rows[change]


def test_a_lever_that_cannot_be_had_says_why(pagelab, strict_object):
    words = ("capacity", "-m", "llama-2-13b", "--gpu", "h200-141g", "--kv-dtype", "int4", "--tp", "8")
    load = ("--mean-prompt-len", "10", "--mean-output-len", "10")
    rows = {row["lever"]: row for row in strict_object(pagelab(*words, *load, "--json").out)["what_if"]}

    assert "one must divide the other" in rows["more tensor parallelism"]["why_not"]
    assert "4 bits already" in rows["narrower KV"]["why_not"]
    assert "none is larger" in rows["larger GPU"]["why_not"]
    pinned = strict_object(pagelab(*words, "--num-blocks", "64", *load, "--json").out)["what_if"]
    assert "pinned" in next(row for row in pinned if row["lever"] == "more pipeline stages")["why_not"]
    assert rows["narrower KV"]["num_blocks"] is None


def test_traps_name_the_wrong_answers(exercise):
    traps = {(trap["what"], trap["mistake"]): trap["num_blocks"] for trap in exercise()["unit_traps"]}

    assert traps["memory for KV on a rank", "6.000 read as GB of 10^9 bytes"] == 2288
    assert traps["blocks of a rank", "added up over the ranks"] == 4914
    assert traps["a token on all ranks", "one rank's memory divided by all ranks' bytes"] == 2457 // 2
    assert traps["the card a100-80g", "85,031,714,816 B is what the driver reports"] == 2126


def test_one_rank_has_no_trap_of_ranks(pagelab, strict_object):
    answer = strict_object(pagelab("capacity", "-m", "llama-2-13b", "--json").out)
    what = {trap["what"] for trap in answer["unit_traps"]}

    assert not {"blocks of a rank", "a token on all ranks", "a token in a layer"} & what
    assert "demand" not in answer
    assert "held" not in answer


def test_a_model_that_caches_latents_is_counted_without_the_factor_two(pagelab, strict_object):
    answer = strict_object(
        pagelab("capacity", "-m", "deepseek-v2", "--gpu", "h200", "--tp", "8", "--block-size", "64", "--json").out
    )
    traps = {trap["what"]: trap for trap in answer["unit_traps"]}

    assert answer["kv_formula"] == "60 layers x latent of 576 x 16 bit = 69,120 B"
    assert answer["num_blocks"] == 17_410
    assert traps["a token in a layer"]["num_blocks"] == 17_410 // 2
    assert "one latent of 576 elements, 1,152 B" in traps["a token in a layer"]["right"]
    assert "each tensor-parallel rank has a whole latent" in traps["blocks of a rank"]["right"]


def test_the_replay_says_what_holds(exercise):
    held = {
        (row["allocator"], row["workload"], row["limit"]): row
        for row in exercise("--simulate", "--allocator", "paged,orca-oracle,orca-max")["held"]
    }
    equal = {name: held[name, "cv 0", 32] for name in ("paged", "orca-oracle", "orca-max")}

    assert [row["mean_running"] for row in equal.values()] == [32, 19, 4]
    assert [row["holds"] for row in equal.values()] == [True, False, False]
    assert held["paged", "cv 0", None]["mean_running"] > 37  # ages are mixed: not all are at full length
    assert held["paged", "cv 0", None]["num_preemptions"] > 0
    for name, row in equal.items():
        assert row["mean_running"] == min(32, _admitted(name)), name


def _admitted(name):
    """Requests of the exercise that the allocator takes one after the other, each with its whole length."""
    allocator = make_allocator(name, PoolConfig(2457, 16, 8192, enable_caching=False))
    count = 0
    while True:
        request = Request(count, 800, 256)
        if isinstance(allocator.admit(request, 800, others_running=bool(count)), Refusal):
            return count
        if isinstance(allocator.extend([request], [1055]), Refusal):
            return count
        count += 1


@pytest.mark.parametrize(
    "words,said",
    [
        (("--concurrency", "32"), "--mean-output-len"),
        (("--simulate",), "--mean-prompt-len"),
        (("--mean-prompt-len", "5"), "--mean-output-len"),
        (("--mean-prompt-len", "5", "--mean-output-len", "5", "--concurrency", "0"), "--concurrency is the requests"),
        (("--mean-prompt-len", "4000", "--mean-output-len", "97", "--max-model-len", "4096"), "4,096 tokens of --max"),
        (("--rule", "chapter", "--num-blocks", "100"), "kv.num_blocks both set the capacity"),
        (("--rule", "default", "--capacity-rule", "chapter-gib"), "kv.capacity_rule=chapter-gib both set the capacity"),
        (("--kv-tokens", "4096", "--headroom-gb", "2"), "kv_tokens pins the capacity, headroom_bytes would size it"),
        (("--rule", "chapter", "--gpu-memory-utilization", "0.9"), "has its own utilization"),
        (("--rule", "sosp23", "--headroom-gb", "2"), "has its own headroom"),
        (("--rule", "sosp23", "--kv-dtype", "fp8"), "in 16 bits"),
        (("--rule", "sosp23", "--pp", "2"), "no pipeline stages"),
    ],
)
def test_half_a_load_and_terms_that_a_rule_lacks_are_refused(pagelab, words, said):
    done = pagelab("capacity", *words)

    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_the_chapters_headroom_may_be_another(pagelab, strict_object):
    words = ("capacity", "-m", "llama-3-70b", "--tp", "2", "--rule", "chapter", "--json")
    less = strict_object(pagelab(*words, "--headroom-gb", "2.5").out)

    assert less["budget_bytes"] == 15 * 2**29
    assert less["num_blocks"] == 15 * 2**29 // (16 * 163_840)


@pytest.mark.parametrize("flag", ["--mean-prompt-len", "--mean-output-len"])
@pytest.mark.parametrize("value", ["0", "-1", "0.99", "nan", "inf", "-inf", "1e400"])
def test_a_length_is_at_least_a_token(pagelab, flag, value):
    other = {"--mean-prompt-len": "5", "--mean-output-len": "5"} | {flag: value}
    done = pagelab("capacity", *(word for pair in other.items() for word in pair))

    assert (done.code, done.out) == (2, "")
    assert f"{flag} is in tokens, at least 1" in done.err


@pytest.mark.parametrize("rule", ["default", "chapter-gib", "chapter-gb", "chapter-mixed", "sosp23"])
def test_the_configurations_rule_is_the_rule(pagelab, strict_object, tmp_path, rule):
    """By flag and by file alike, and the same blocks as a run gets."""
    model = ("-m", "opt-13b", "--gpu", "a100-40g", "--max-model-len", "2048", "--json")
    (tmp_path / "pool.toml").write_text(f'[kv]\ncapacity_rule = "{rule}"\n', encoding="utf-8")
    by_flag = strict_object(pagelab("capacity", "--capacity-rule", rule, *model).out)
    by_file = strict_object(pagelab("capacity", "-c", "pool.toml", *model).out)
    run = strict_object(pagelab("run", "--capacity-rule", rule, "--num-requests", "3", *model).out)

    assert by_flag == by_file
    assert (by_flag["rule"], by_flag["num_blocks"]) == (rule, run["capacity"]["num_blocks"])


def test_memory_alone_decides_what_a_replay_holds(pagelab, strict_object):
    """Short requests in a pool for 1,000 of them: one that never ends its decoding fast enough is no shortage."""
    load = ("--mean-prompt-len", "100", "--mean-output-len", "20", "--concurrency", "600")
    words = ("capacity", "-m", "llama-3-70b", "--tp", "2", "--kv-tokens", "128000", *load, "--allocator", "paged")
    answer = strict_object(pagelab(*words, "--simulate", "--json").out)
    equal = {row["limit"]: row for row in answer["held"] if row["workload"] == "cv 0"}

    assert answer["demand"]["fits"][0]["fits"]
    assert (equal[600]["mean_running"], equal[600]["holds"]) == (600, True)
    assert equal[None]["used_frac"] > 0.9


def test_a_replay_that_would_take_hours_is_refused(pagelab):
    load = ("--mean-prompt-len", "1", "--mean-output-len", "1")
    done = pagelab("capacity", "-m", "llama-3-8b", *load, "--simulate")

    assert done.code == 2
    assert "would have to be replayed, more than 40,000" in done.err
