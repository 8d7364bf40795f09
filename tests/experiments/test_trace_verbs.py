"""The verbs of `trace` that fetch, convert and mix. No network: mirrors are files, servers are made up."""

import hashlib
import io
import re
import urllib.error
from email.message import Message

import pytest

from experiments.exits import UsageError
from experiments.trace_fetch import fetch_verb
from workloads.homes import HOMES

ROWS = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2030-01-01 00:00:00.0000000,10,5\n"
NAME = "azure-2023-code"
FILE = "AzureLLMInferenceTrace_code.csv"


@pytest.fixture
def mirror(tmp_path):
    """Writes bytes where a file:// address finds them."""

    def put(data):
        (tmp_path / "mirror").write_bytes(data)
        return (tmp_path / "mirror").as_uri()

    return put


def test_without_a_name_all_homes_are_listed(pagelab):
    done = pagelab("trace", "fetch")

    assert done.code == 0
    assert all(name in done.out for name in HOMES)
    assert "CC BY 4.0" in done.out


@pytest.mark.parametrize("name", HOMES)
def test_every_home_has_an_address_a_licence_and_a_plausible_checksum(name):
    home = HOMES[name]

    assert home.url.startswith("https://")
    assert home.file_name.endswith((".csv", ".csv.gz", ".jsonl", ".json"))
    assert home.licence
    assert home.cite
    assert home.sha256 is None or (len(home.sha256) == 64 and set(home.sha256) <= set("0123456789abcdef"))


def test_a_first_download_is_recorded_and_the_next_is_held_against_it(pagelab, mirror, tmp_path):
    first = pagelab("trace", "fetch", NAME, "--url", mirror(ROWS))
    again = pagelab("trace", "fetch", NAME)
    changed = pagelab("trace", "fetch", NAME, "--overwrite", "--url", mirror(ROWS + ROWS))

    digest = hashlib.sha256(ROWS).hexdigest()
    assert (first.code, again.code, changed.code) == (0, 0, 2)
    assert f"sha256 {digest} (recorded in {FILE}.sha256" in first.out
    assert "licence: CC BY 4.0" in first.out
    assert (tmp_path / f"{FILE}.sha256").read_text() == f"{digest}  {FILE}\n"
    assert "there already" in again.out
    assert f"{FILE}.sha256 remembers {digest}" in changed.err
    assert (tmp_path / FILE).read_bytes() == ROWS
    assert pagelab("trace", "inspect", FILE).code == 0


def test_a_file_with_a_known_checksum_must_have_it(pagelab, mirror, tmp_path):
    done = pagelab("trace", "fetch", "azure-2023-conv", "--url", mirror(ROWS))

    assert done.code == 2
    assert f"has sha256 {hashlib.sha256(ROWS).hexdigest()}, it must be {HOMES['azure-2023-conv'].sha256}" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["mirror"]


def test_a_file_that_was_changed_on_disk_is_noticed(pagelab, mirror, tmp_path):
    pagelab("trace", "fetch", NAME, "--url", mirror(ROWS))
    (tmp_path / FILE).write_bytes(ROWS[:-1])

    done = pagelab("trace", "fetch", NAME)

    assert done.code == 2
    assert "what is there has sha256" in done.err


@pytest.mark.parametrize(
    "data,said",
    [
        (b"<!DOCTYPE html><html>", "an HTML page, not the data"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"", "the file is empty"),
    ],
)
def test_a_page_in_place_of_the_data_is_refused(data, said, pagelab, mirror, tmp_path):
    done = pagelab("trace", "fetch", NAME, "--url", mirror(data))

    assert done.code == 2
    assert said in done.err
    assert "--url" in done.err
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "words,said",
    [
        (("azure-2022",), "no trace is known as 'azure-2022'; known are azure-2023-conv"),
        ((NAME, "-o", "nowhere"), "nowhere: no such folder"),
        ((NAME, "--url", "file:///no/such/file"), "cannot be reached"),
        ((NAME, "--url", "no address"), "--url: unknown url type"),
    ],
)
def test_what_cannot_be_fetched_says_why_and_what_to_do(words, said, pagelab):
    done = pagelab("trace", "fetch", *words)

    assert done.code == 2
    assert said in done.err


class Answer(io.BytesIO):
    """What a server sends, with the length that it promises."""

    def __init__(self, data, promised):
        super().__init__(data)
        self.headers = {"Content-Length": str(promised)}


def test_servers_that_refuse_break_off_or_are_not_there(tmp_path):
    def missing(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", Message(), None)

    def silent(request, timeout):
        raise urllib.error.URLError("Name or service not known")

    def short(request, timeout):
        assert timeout > 0
        return Answer(ROWS, len(ROWS) + 5)

    for opener, said in ((missing, "answers 404 Not Found"), (silent, "cannot be reached"), (short, "broke off after")):
        with pytest.raises(UsageError, match=said):
            fetch_verb(NAME, tmp_path, None, overwrite=False, opener=opener)
    assert list(tmp_path.iterdir()) == []


def test_the_address_asked_for_is_the_published_one(tmp_path):
    asked = []

    def opener(request, timeout):
        asked.append(request.full_url)
        return Answer(ROWS, len(ROWS))

    fetch_verb(NAME, tmp_path, None, overwrite=False, opener=opener)

    assert asked == [HOMES[NAME].url]
    assert (tmp_path / FILE).read_bytes() == ROWS


def test_a_trace_goes_to_another_tool_and_back(pagelab, strict_object):
    pagelab("trace", "synth", "a.csv", "-n", "30", "--lengths", "fixed:20,5")
    refused = pagelab("trace", "convert", "a.csv", "a.jsonl", "--to", "mooncake")
    lossy = pagelab("trace", "convert", "a.csv", "a.jsonl", "--to", "mooncake", "--lossy")
    exact = pagelab("trace", "convert", "a.csv", "v.csv", "--to", "vidur")

    assert (refused.code, lossy.code, exact.code) == (2, 0, 0)
    assert "mooncake would lose arrival_ns of 29 rows" in refused.err
    assert "lost: arrival_ns of 29 rows" in lossy.err
    shas = [strict_object(pagelab("trace", "inspect", file, "--json").out)["sha256"] for file in ("a.csv", "v.csv")]
    assert shas[0] == shas[1]
    assert pagelab("trace", "convert", "a.csv", "v.csv", "--to", "vidur").code == 2
    assert "need one of pagelab, azure" in pagelab("trace", "convert", "a.csv", "x", "--to", "csv").err
    assert "loses nothing" in pagelab("trace", "convert", "a.csv", "x.csv", "--lossy").err


MIX = """
[[client]]
name = "chat"
request_rate = 3.0
cv = 2.0
num_clients = 4
rate_skew = 1.0

[[client]]
name = "batch"
request_rate = 1.0
lengths = "lognormal:7/0.5,4/0.4"
arrivals = "on-off:20,60"
"""


def test_a_mix_of_clients_is_made_from_a_file(pagelab, strict_object, tmp_path):
    (tmp_path / "mix.toml").write_text(MIX)

    assert pagelab("trace", "synth", "m.csv", "--clients", "mix.toml", "-n", "200", "--seed", "3").code == 0
    assert pagelab("trace", "synth", "n.csv", "--clients", "mix.toml", "-n", "200", "--seed", "3").code == 0
    assert strict_object(pagelab("trace", "inspect", "m.csv", "--json").out)["num_requests"] == 200
    assert (tmp_path / "m.csv").read_text().splitlines()[1:] == (tmp_path / "n.csv").read_text().splitlines()[1:]
    both = pagelab("trace", "synth", "o.csv", "--clients", "mix.toml", "--cv", "2")
    assert "leave --cv out" in both.err


@pytest.mark.parametrize(
    "text,said",
    [
        ("[[client]]\nname = 'a'\nrequest_rate = 1\nburst = 2\n", "client 1: unknown key 'burst'; known are name"),
        ("[[client]]\nname = 'a'\n", "client 1: .*request_rate"),
        ("[[client]]\nname = 'a'\nrequest_rate = -1\n", "need a positive finite request_rate"),
        ("[[client]]\nname = 'a'\nrequest_rate = 'much'\n", "client 1: "),
        ("clients = 3\n", "need \\[\\[client\\]\\] tables and nothing else, got clients"),
        ("[[client\n", "write a \\[\\[client\\]\\] table"),
    ],
)
def test_a_file_of_clients_is_refused_with_its_key(text, said, pagelab, tmp_path):
    (tmp_path / "mix.toml").write_text(text)

    done = pagelab("trace", "synth", "m.csv", "--clients", "mix.toml")

    assert done.code == 2
    assert re.search(said, " ".join(done.err.split()))


def test_bursts_and_changing_rates_are_made_and_wrong_ones_refused(pagelab):
    assert pagelab("trace", "synth", "p.csv", "--arrivals", "piecewise:2@60,8@30").code == 0
    assert pagelab("trace", "synth", "b.csv", "--arrivals", "on-off:10,30", "--request-rate", "5").code == 0
    both = pagelab("trace", "synth", "q.csv", "--arrivals", "piecewise:2@60", "--request-rate", "5")
    assert (both.code, "says its rates itself" in both.err) == (2, True)


def test_a_file_goes_round_where_that_is_asked_for(pagelab, small, strict_object, tmp_path):
    pagelab("trace", "synth", "a.csv", "-n", "10", "--request-rate", "5", "--arrivals", "constant")

    longer = pagelab("trace", "convert", "a.csv", "b.csv", "-n", "25", "--repeat")
    refused = small("run", "--num-requests", "41", "--json")
    again = small("run", "--num-requests", "50", "--repeat", "--json")

    assert longer.code == 0
    facts = strict_object(pagelab("trace", "inspect", "b.csv", "--json").out)
    assert (facts["num_requests"], facts["rate_per_s"], facts["iat_cv"]) == (
        25,
        pytest.approx(5.0),
        pytest.approx(0, abs=1e-6),
    )
    assert (refused.code, again.code) == (2, 0)
    assert "the trace holds 40; ask for fewer, or say --repeat" in refused.err
    assert '"num_requests": 50' in again.out


@pytest.mark.parametrize(
    "words,said",
    [
        (("--arrivals", "on-off:3"), "expected ON_S,OFF_S, got '3'"),
        (("--arrivals", "on-off:1,2,3"), "expected ON_S,OFF_S, got '1,2,3'"),
        (("--arrivals", "piecewise:"), "expected RATE@S,RATE@S,..., got ''"),
        (("--arrivals", "piecewise:2@3@4"), "expected RATE@S,RATE@S,..., got '2@3@4'"),
        (("--arrivals", "nope"), "--arrivals: need one of"),
        (("--lengths", "fixed:5"), "expected IN,OUT, got '5'"),
        (("--lengths", "uniform:1-2-3,4-5"), "expected LOW-HIGH, got '1-2-3'"),
        (("--lengths", "lognormal:3,4"), "expected MU/SIGMA, got '3'"),
        (("--lengths", "lognormal:nan/1,2/3"), "finite mu and sigma"),
        (("--lengths", "lognormal:1/inf,2/3"), "finite mu and sigma"),
        (("--request-rate", "0"), "finite --request-rate, got 0"),
        (("--request-rate", "nan"), "finite --request-rate, got nan"),
        (("--arrivals", "gamma", "--cv", "-1"), "finite --cv, got -1"),
    ],
)
def test_a_recipe_that_cannot_be_read_says_the_flag_and_its_shape(pagelab, tmp_path, words, said):
    done = pagelab("trace", "synth", "t.csv", *words)

    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "unpack" not in done.err
    assert not (tmp_path / "t.csv").exists()
