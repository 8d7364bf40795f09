"""Problems and their checks, on the CPU: what is wrong is noticed, and what fails costs its own row only."""

import math
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from engine.attention.libraries.fa3 import Extension  # noqa: E402
from experiments.bench import truth  # noqa: E402
from experiments.bench.bench import Bench, chosen  # noqa: E402
from experiments.bench.contestant import Missing, UnsupportedError  # noqa: E402
from experiments.bench.inputs import Arena, problem_of, views_of  # noqa: E402
from experiments.bench.peer_fa3 import FlashAttention3, TwoCalls  # noqa: E402
from experiments.bench.peer_flashinfer import pages_of  # noqa: E402
from experiments.bench.peer_torch import IndexCopy, Sdpa  # noqa: E402
from experiments.bench.peers import PEERS, joined  # noqa: E402
from experiments.bench.shapes import LAYOUTS, Heads, Shape  # noqa: E402

HEADS = Heads("tiny", 4, 2, 16)
RAGGED = Shape("decode", "decode", "ragged", HEADS, (1, 15, 16, 17, 40), (1,) * 5, 16, dtype="float32")


@pytest.fixture(autouse=True)
def small_arena(monkeypatch):
    """Two sets, four bytes an element: float32 takes the half-precision kernels' place."""
    monkeypatch.setattr("experiments.bench.inputs.num_sets", lambda size: 2)


def problem(shape=RAGGED, seed=0):
    return problem_of(shape, Arena("cpu", 0), seed)


def test_tables_give_every_sequence_blocks_of_its_own():
    made = problem()
    used = [block for row, count in enumerate(RAGGED.blocks_of) for block in made.block_table[row, :count].tolist()]

    assert used != sorted(used) == list(range(RAGGED.num_blocks))
    assert made.starts.tolist() == [0, 16, 32, 48, 80]
    assert made.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_identity_table_is_the_order_of_the_memory():
    made = problem(RAGGED.with_(table="identity"))

    assert made.block_table[4].tolist() == [5, 6, 7]
    assert made.block_table[0].tolist() == [0, 0, 0]


def test_slots_are_those_of_the_last_tokens():
    shape = Shape("chunk", "prefill", "x", HEADS, (20, 5), (3, 5), 4, table="identity", dtype="float32")

    assert problem(shape).slot_mapping.tolist() == [17, 18, 19, 20, 21, 22, 23, 24]


def test_the_same_seed_gives_the_same_problem_and_another_another():
    one, same, other = (problem(seed=seed) for seed in (0, 0, 1))

    assert torch.equal(one.block_table, same.block_table)
    assert torch.equal(one.sets[1].q, same.sets[1].q)
    assert not torch.equal(one.block_table, other.block_table)


def test_sets_share_no_memory():
    first, second = problem().sets

    assert first.cache.data_ptr() + first.cache.numel() * 4 <= second.cache.data_ptr()
    assert not torch.equal(first.cache, second.cache)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_a_layout_cover_the_cache_once(layout):
    shape = RAGGED.with_(layout=layout)
    cache = torch.arange(shape.cache_bytes // 2)
    k, v = views_of(cache, shape)

    assert k.shape == v.shape == (8, 16, 2, 16)
    assert sorted(torch.cat([k.flatten(), v.flatten()]).tolist()) == list(range(len(cache)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("queries", [(1, 1, 1, 1, 1), (1, 2, 16, 3, 40)])
def test_the_expected_output_is_attention_token_by_token(layout, queries, plain):
    shape = RAGGED.with_(layout=layout, query_lens=queries, kernel="prefill")
    made = problem(shape)
    for contiguous in (False, True):
        if contiguous and layout != "kv_first":
            continue
        one = plain(contiguous=contiguous)
        one.call(made, made.sets[0])
        wanted = truth.expected(made, made.sets[0], contiguous=contiguous)

        assert truth.attention_error(made, made.sets[0].out, wanted) < 1e-6


def test_only_the_ends_of_long_prompts_are_compared():
    shape = Shape("prefill", "prefill", "x", HEADS, (300, 2), (300, 2), 16, dtype="float32")
    made = problem(shape)

    assert truth.sampled(made) == [0, 1]
    assert truth.rows_of(made, 0) == [*range(64), *range(236, 300)]
    assert len(truth.compared(made, made.sets[0].out)) == 130


def test_every_contestant_gets_a_row_and_only_the_right_ones_a_time(stopwatch, plain, raising):
    bench = Bench(Arena("cpu", 0), stopwatch(0.5), seed=3, note={"device": "none"})
    blind = plain("blind")
    blind.kernels = ("write",)
    rows = list(
        bench.rows(RAGGED, [plain(), plain("off", wrong=0.1), raising("raises"), blind, plain("nan", wrong=math.nan)])
    )

    assert [(row["peer"], row["status"]) for row in rows] == [
        ("pagelab", "ok"),
        ("off", "wrong"),
        ("raises", "failed"),
        ("blind", "unsupported"),
        ("nan", "wrong"),
    ]
    assert rows[0]["median_s"] == 0.25  # two sets a replay
    assert rows[0]["relative_error"] < 1e-6
    assert [row["median_s"] for row in rows[1:]] == [None] * 4
    assert rows[2]["reason"] == "ValueError: no such kernel"
    assert {(row["seed"], row["device"]) for row in rows} == {(3, "none")}


def test_an_element_that_nobody_wrote_is_noticed(stopwatch, plain):
    class Forgetful(plain):
        def call(self, problem, one):
            kept = one.out[2, 0, 0].clone()  # the third sequence's is not among the compared ones' longest or ends
            super().call(problem, one)
            one.out[2, 0, 0] = kept

    shape = RAGGED.with_(seq_lens=(40, 1, 15, 16, 17, 3), query_lens=(1,) * 6)
    (row,) = Bench(Arena("cpu", 0), stopwatch(1.0)).rows(shape, [Forgetful()])

    assert 2 not in truth.sampled(problem(shape))
    assert row["status"] == "wrong"


def test_reading_by_the_wrong_table_is_noticed(stopwatch, plain):
    shape = RAGGED.with_(seq_lens=(33, 40), query_lens=(1, 1))
    confused = plain("confused", contiguous=True)
    confused.contiguous = False  # claims to be paged
    confused.slots = lambda problem, row, length: int(problem.starts[row]) + torch.arange(length)
    (row,) = Bench(Arena("cpu", 0), stopwatch(1.0)).rows(shape, [confused])

    assert row["status"] == "wrong"


def test_a_lost_device_ends_everything(stopwatch, plain, raising):
    class Lost(stopwatch):
        def synchronize(self):
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="device is lost: an illegal memory access"):
        list(Bench(Arena("cpu", 0), Lost(1.0)).rows(RAGGED, [raising(), plain()]))


@pytest.mark.parametrize("kernel", ["write", "copy"])
def test_writes_and_copies_are_compared_bit_for_bit(kernel, stopwatch):
    lengths = (16,) * 3 if kernel == "copy" else (1, 20, 33)
    shape = Shape(kernel, kernel, "x", HEADS, lengths, lengths, 16, dtype="float32")
    bench = Bench(Arena("cpu", 0), stopwatch(1.0))
    (row,) = bench.rows(shape, [IndexCopy()])

    class Short(IndexCopy):
        def _write(self, problem, one):
            one.k_cache.flatten(0, 1).index_copy_(0, problem.slot_mapping, one.k)

        def _copy(self, problem, one):
            one.k_cache[problem.pairs[0, 1]] = one.k_cache[problem.pairs[0, 0]]

    (half,) = bench.rows(shape, [Short()])
    assert (row["status"], row["relative_error"]) == ("ok", 0.0)
    assert half["status"] == "wrong"


@pytest.mark.parametrize("query,context", [(1, 33), (17, 17), (5, 33)])
def test_torchs_own_attention_agrees_on_contiguous_sequences(query, context, stopwatch):
    kernel = "decode" if query == 1 else "prefill"
    shape = Shape("twin", kernel, "x", HEADS, (context,) * 3, (query,) * 3, 16, dtype="bfloat16")
    peer = Sdpa("torch-flash", "FLASH_ATTENTION")
    if query == 5:
        with pytest.raises(UnsupportedError, match="aligned"):
            Sdpa("torch-cudnn", "CUDNN_ATTENTION").enter(problem(shape))
        return
    (row,) = Bench(Arena("cpu", 0), stopwatch(1.0)).rows(shape, [peer])

    assert row["status"] == "ok", row["reason"]
    assert row["contiguous"]


def test_contiguous_peers_refuse_what_is_ragged_or_scattered():
    peer = Sdpa("torch-flash", "FLASH_ATTENTION")
    for shape, why in (
        (RAGGED, "one length"),
        (RAGGED.with_(seq_lens=(7,) * 5, layout="interleaved"), "contiguous rows"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            peer.enter(problem(shape))


def test_flashinfers_words_say_the_same_as_the_table():
    made = problem()
    pages = pages_of(made)

    assert pages.indptr.tolist() == [0, 1, 2, 3, 5, 8]
    assert pages.last_page_len.tolist() == [1, 15, 16, 1, 8]
    assert pages.indices.tolist() == [
        b for row, n in enumerate(RAGGED.blocks_of) for b in made.block_table[row, :n].tolist()
    ]


def test_a_missing_library_is_named_with_its_reason(monkeypatch):
    for module in ("flashinfer", "vllm", "flash_attn_interface", "flash_mla"):
        monkeypatch.setitem(sys.modules, module, None)

    here, missing = joined(list(PEERS))

    assert [one.name for one in here] == ["torch-flash", "torch-cudnn", "torch-index-copy"]
    assert {one.name.split()[0] for one in missing} == {
        "fa3",
        "flashinfer",
        "flashinfer-mla",
        "flash-mla",
        "vllm-triton",
    }
    assert all(isinstance(one, Missing) and one.reason for one in missing)


def test_a_library_that_was_named_and_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"FlashAttention-3: .*none\.so: no such library"):
        joined(["fa3"], tmp_path / "none.so")
    with pytest.raises(ValueError, match="unknown peer 'fa4'"):
        joined(["fa4"])


def test_a_case_chooses_among_ours_and_the_peers(plain):
    ours = [plain("pagelab"), plain("pagelab-twin")]
    peers = [plain("fa3")]

    assert [one.name for one in chosen("decode", ours, ("pagelab", "peers"), peers)] == ["pagelab", "fa3"]
    assert [one.name for one in chosen("decode", ours, ("pagelab-twin",), peers)] == ["pagelab-twin"]
    assert chosen("write", ours, ("pagelab", "peers"), peers) == []


def paged_forward(*args):
    """The extension's operator in plain torch, as far as the two calls use it: output, log-sum-exp [H, T]."""
    from engine.attention.reference import attend, gather

    q, k_cache, v_cache, out, starts, lens, table = *args[:3], args[6], args[7], args[11], args[14]
    scale, causal = args[23:25]
    lse = torch.empty(q.shape[1], len(q))
    for row, length in enumerate(lens.tolist()):
        asked = slice(int(starts[row]), int(starts[row + 1]))
        count = asked.stop - asked.start
        places = torch.arange(length - count, length) if causal else torch.full((count,), length - 1)
        keys, values = (gather(cache, table[row], 0, length) for cache in (k_cache, v_cache))
        found, sums = attend(q[asked], keys, values, places, 0, scale=scale)
        out[asked], lse[:, asked] = found, sums.T
    return out, lse, None, None


def test_two_calls_of_flash_attention_3_are_right_once_they_are_merged(stopwatch):
    ops = SimpleNamespace(fwd=paged_forward, get_scheduler_metadata=lambda *args: None)
    shared = RAGGED.with_(seq_lens=(40, 45, 33, 60, 39), kernel="decode", query_lens=(1,) * 5, shared_tokens=32)
    two = TwoCalls(Extension(ops))
    rows = list(Bench(Arena("cpu", 0), stopwatch(1.0)).rows(shared, [two]))

    assert [row["status"] for row in rows] == ["ok"], rows
    (none,) = Bench(Arena("cpu", 0), stopwatch(1.0)).rows(RAGGED, [two])
    assert (none["status"], none["reason"]) == ("unsupported", "nothing is shared")


@pytest.mark.parametrize("contiguous", [False, True])
def test_flash_attention_3_gets_its_arguments_in_their_places(contiguous):
    seen = {}
    names = ("fwd", "get_scheduler_metadata")
    ops = SimpleNamespace(**{name: lambda *args, name=name: seen.setdefault(name, args) for name in names})
    shape = RAGGED.with_(seq_lens=(20,) * 5) if contiguous else RAGGED
    made = problem(shape)
    FlashAttention3("fa3", Extension(ops), contiguous=contiguous).enter(made).calls[1]()

    one, args = made.sets[1], seen["fwd"]
    assert (len(args), len(seen["get_scheduler_metadata"])) == (37, 23)
    assert [args[place] is given for place, given in ((0, one.q), (6, one.out), (7, made.query_start_loc))] == [
        True
    ] * 3
    assert args[11] is made.seq_lens
    assert args[12:14] == (1, max(shape.seq_lens))
    assert args[14] is (None if contiguous else made.block_table)
    assert args[1].shape == ((5, 20, 2, 16) if contiguous else one.k_cache.shape)
    assert args[1].data_ptr() == one.k_cache.data_ptr()
    assert args[23:25] == (made.scale, True)
    assert args[29] is seen["get_scheduler_metadata"]
