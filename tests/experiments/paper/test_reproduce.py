"""The verb: what is printed where, the exit codes, and the claims from the stand-in."""

import json

import pytest

from experiments.exits import UsageError
from experiments.paper import table1, verb
from experiments.paper.block_size import BLOCK_SIZE, CAPACITY_TOKENS, SIZES
from experiments.paper.runs import Lab, RunKey


@pytest.fixture(scope="module")
def lab() -> Lab:
    """Fig 2 from the stand-in, one seed."""
    return Lab(num_seeds=1, quick=True)


def reproduce_json(capsys, names, **options):
    code = verb.reproduce(names, as_json=True, **options)
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


def test_table1_passes_and_is_one_json_object(capsys):
    code, document, _ = reproduce_json(capsys, ["table1"])

    assert code == 0
    blocks = [claim for claim in document["claims"] if claim["metric"].startswith("KV blocks")]
    assert [(claim["id"], claim["got"]) for claim in blocks] == [
        ("table1/opt-13b/num_blocks", 984),
        ("table1/opt-66b/num_blocks", 605),
        ("table1/opt-175b/num_blocks", 3758),
    ]
    assert all(claim["pass"] is True for claim in document["claims"])
    assert set(document["deviations"]) == {"gpu-bytes", "kib", "rounded"}


def test_a_wrong_number_is_a_miss(capsys, monkeypatch):
    wrong = table1.SETUPS[0]._replace(num_blocks=985)
    monkeypatch.setattr(table1, "SETUPS", (wrong, *table1.SETUPS[1:]))

    code, document, _ = reproduce_json(capsys, ["table1"])

    assert code == 4
    assert [claim["id"] for claim in document["claims"] if claim["pass"] is False] == ["table1/opt-13b/num_blocks"]


def test_the_tables_go_to_standard_output_alone(capsys):
    assert verb.reproduce(["table1", "fig8"]) == 0

    printed = capsys.readouterr()
    assert "3,758" in printed.out
    assert "17 of 17 claims passed" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    "names,options,said",
    [
        (["fig13"], {}, "did you mean fig13"),
        (["table1", "figure2"], {}, "unknown experiment 'figure2'"),
        (["table1"], {"seeds": 0}, "at least one seed"),
        (["table1"], {"jobs": 0}, "at least one"),
        (["table1"], {"lengths": {"shareGPT": "x.csv"}}, "did you mean sharegpt"),
        (["table1"], {"lengths": {"sharegpt": "no-such-file.csv"}}, "no-such-file.csv"),
    ],
)
def test_bad_usage_says_what_is_wrong_and_measures_nothing(capsys, names, options, said):
    with pytest.raises(UsageError, match=said):
        verb.reproduce(names, **options)

    assert capsys.readouterr().out == ""


def test_lengths_of_which_none_fit_are_refused(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("input_len,output_len\n3000,1\n")

    with pytest.raises(UsageError, match=r"in \+ out"):
        verb.reproduce(["fig2"], lengths={"sharegpt": path})


def test_given_lengths_are_used_and_judged_as_real(capsys, tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input_len,output_len\n" + "161,338\n" * 69 + "162,338\n" * 31 + "9000,9\n")

    code, document, err = reproduce_json(capsys, ["fig11"], lengths={"sharegpt": path}, seeds=1)

    claims = {claim["id"]: claim for claim in document["claims"]}
    assert claims["fig11/sharegpt/mean_prompt"]["got"] == pytest.approx(161.31)
    assert claims["fig11/sharegpt/mean_prompt"]["tolerance"] == 0.01
    assert "stand-in" in claims["fig11/alpaca/mean_prompt"]["deviations"]
    assert document["lengths"] == {"sharegpt": "given", "alpaca": "stand-in"}
    assert code == 0
    assert "101 lengths" in err


def test_fig11_from_the_stand_ins(capsys):
    code, document, _ = reproduce_json(capsys, ["fig11"], quick=True)

    assert code == 0
    assert {claim["num_seeds"] for claim in document["claims"][:4]} == {3}


def test_fig2_from_the_stand_in(lab):
    section = verb.measure(["fig2"], lab)[0]

    assert [(r.claim.id, r.got, r.claim.expected) for r in section.results if r.verdict != "pass"] == []
    assert all({"stand-in", "few-seeds"} <= set(r.claim.deviations) for r in section.results)
    exactly = next(r for r in section.results if r.claim.id == "fig2/orca-max/external")
    assert exactly.got == pytest.approx(100 * (1 - 7 * 128 / 984))


def test_both_accountings_of_fig2_fill_the_cache(lab):
    paper, strict = verb.measure(["fig2"], lab)[0].tables

    for row in paper.rows:
        assert sum(row[2:9:2]) == pytest.approx(100)
    for row in strict.rows:
        assert sum(row[1:]) == pytest.approx(100)
    assert [row[1] for row in strict.rows] == pytest.approx([row[2] for row in paper.rows])


def test_the_whole_chapter_passes(lab):
    results = verb.measure(["chapter"], lab)[0].results

    assert [(r.claim.id, r.got, r.claim.expected) for r in results if r.verdict == "miss"] == []
    pending = [r.claim.id for r in results if r.verdict == "not yet"]
    assert pending == ["chapter/S23"]
    numbered = {r.claim.id.split("/")[1] for r in results}
    assert numbered == {f"S{n:02d}" for n in range(1, 27)} | {"S11b"}


def test_runs_in_two_processes_are_the_same_runs(lab):
    keys = [RunKey("paper-fig2", name, 0) for name in ("orca-pow2", "orca-oracle")]

    assert Lab(jobs=2).measure(keys) == lab.measure(keys)


@pytest.mark.parametrize(
    "live,verdict",
    [([0.98, 0.97, 0.96, 0.94, 0.9, 0.8, 0.7], "pass"), ([0.98, 0.97, 0.98, 0.9, 0.8, 0.7, 0.6], "miss")],
)
def test_a_rise_at_any_block_size_is_a_miss(live, verdict):
    lab = Lab(num_seeds=2)
    for seed in (0, 1):
        for size, share in zip(SIZES, live if seed else sorted(live, reverse=True), strict=True):
            key = RunKey("paper-fig2", "paged", seed, CAPACITY_TOKENS // size, size)
            lab._done[key] = {"iter_paper_token_frac": share - seed / 100}

    (result,) = BLOCK_SIZE.judge(lab)

    assert result.verdict == verdict


def test_blocks_of_every_size_fill_the_same_capacity():
    assert {CAPACITY_TOKENS % size for size in SIZES} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block-size", "fig13a"])
def test_the_long_ones_from_the_stand_in(name):
    results = verb.measure([name], Lab(num_seeds=1))[0].results

    assert {r.verdict for r in results} <= {"pass", "calibrated"}
