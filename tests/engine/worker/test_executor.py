"""The engine's executor: the same tokens whatever the memory looks like, and the logits of a plain recomputation."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="the executor computes on torch tensors")

from engine.attention.layouts import KVLayout  # noqa: E402
from engine.core.content import TokenContent  # noqa: E402
from engine.core.registry import FITS  # noqa: E402
from engine.core.request import Request  # noqa: E402
from engine.worker import decode_step, mixed_step  # noqa: E402
from tests.engine.worker import tiny  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ALLOCATORS = ("paged", "orca-max", "orca-pow2", "orca-oracle", *(f"contiguous-chunk(16)-{fit}" for fit in FITS))
TIE = 1e-3


@pytest.fixture(scope="module")
def expected():
    """(greedy tokens, logits) of every request, recomputed."""
    return {
        request.request_id: tiny.recomputed(tiny.prompt_of(request), request.num_stop_tokens)
        for request in tiny.requests()
    }


class Logits:
    """Keeps what the executor shows."""

    def __init__(self):
        self.rows = {}

    def __call__(self, requests, logits):
        for request, row in zip(requests, logits, strict=True):
            self.rows.setdefault(request.request_id, []).append(row.clone())


def check(executor, logits, expected):
    """Every logit within float32 rounding, every token the recomputed one (no near tie among them)."""
    assert set(executor.outputs) == set(expected)
    for name, (tokens, rows) in expected.items():
        best = rows.topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > TIE
        torch.testing.assert_close(torch.stack(logits.rows[name]), rows, rtol=1e-4, atol=1e-4)
        assert executor.outputs[name] == tokens


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_allocator_and_block_size_computes_the_recomputed_logits(allocator, block_size, expected):
    preemptions = 0
    for budget, seqs, caching in ((5, 16, True), (256, 3, False), (256, 16, True)):
        scheduler = tiny.scheduler_over(
            allocator, 96, block_size, caching=caching, max_num_batched_tokens=budget, max_num_seqs=seqs,
            full_sequence_gate=False,
        )  # fmt: skip
        logits = Logits()
        executor = tiny.executor_over(
            scheduler.allocator, max_num_batched_tokens=budget, max_num_seqs=seqs, watch=logits
        )
        preemptions += tiny.serve(scheduler, executor, tiny.requests())
        check(executor, logits, expected)
        assert not executor.rows.requests
        assert (executor.table.num_blocks == 0).all()
    assert preemptions > 0 or not (allocator == "paged" or "chunk" in allocator)


@pytest.mark.parametrize("layout", [KVLayout.KV_FIRST, KVLayout.INTERLEAVED])
@pytest.mark.parametrize("allocator", ["orca-max", "contiguous-chunk(16)-first-fit"])
def test_without_a_table_contiguous_allocators_compute_the_same(allocator, layout, expected):
    scheduler = tiny.scheduler_over(allocator, 96, 4)
    logits = Logits()
    executor = tiny.executor_over(scheduler.allocator, kernel="contiguous", layout=layout, watch=logits)
    tiny.serve(scheduler, executor, tiny.requests())
    check(executor, logits, expected)


def test_without_a_table_paged_blocks_are_read_wrongly(expected):
    """The contiguous kernel really looks at nothing but the first entry."""
    scheduler = tiny.scheduler_over("paged", 96, 4)
    logits = Logits()
    executor = tiny.executor_over(scheduler.allocator, kernel="contiguous", watch=logits)
    tiny.serve(scheduler, executor, tiny.requests())
    with pytest.raises(AssertionError):
        check(executor, logits, expected)


def test_a_layout_whose_keys_are_not_adjacent_has_no_contiguous_kernel():
    scheduler = tiny.scheduler_over("orca-max", 96, 4)
    with pytest.raises(ValueError, match=r"kernel contiguous.*use \(2, NB"):
        tiny.executor_over(scheduler.allocator, kernel="contiguous", layout=KVLayout.BLOCK_FIRST)


def test_garbage_in_rows_that_nobody_has_changes_nothing(expected):
    scheduler = tiny.scheduler_over("paged", 96, 4)
    logits = Logits()
    executor = tiny.executor_over(scheduler.allocator, watch=logits)
    executor.table.gpu.fill_(1 << 30)
    executor.table.cpu.fill(1 << 30)
    executor.state.cpu["last_tokens"].fill(1 << 30)
    executor.state.cpu["seq_lens"].fill(1 << 30)
    tiny.serve(scheduler, executor, tiny.requests())
    check(executor, logits, expected)


@pytest.mark.parametrize("budget", [7, 100, 256])
@pytest.mark.parametrize("kernel, allocator", [("paged", "paged"), ("contiguous", "contiguous-chunk(16)-first-fit")])
def test_steps_padded_to_the_sizes_of_graphs_compute_the_same(kernel, allocator, budget, expected):
    scheduler = tiny.scheduler_over(allocator, 96, 4, max_num_batched_tokens=budget, full_sequence_gate=False)
    logits = Logits()
    executor = tiny.executor_over(
        scheduler.allocator, kernel=kernel, max_num_batched_tokens=budget, padded=True, watch=logits
    )
    assert tiny.serve(scheduler, executor, tiny.requests()) > 0
    check(executor, logits, expected)


@pytest.mark.parametrize("most", [1, 64, 100, 1024, 2048, 8192, 10_000])
def test_buckets_hold_every_number_of_tokens_and_waste_little(most):
    sizes = mixed_step.buckets(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for tokens in range(1, most + 1):
        size = next(size for size in sizes if size >= tokens)
        assert size - tokens < max(64, 0.25 * size)


@pytest.mark.parametrize("most", [1, 3, 8, 100, 256, 300, 2048])
def test_batches_have_a_bucket_that_wastes_little(most):
    sizes = decode_step.buckets(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        assert next(size for size in sizes if size >= rows) - rows < max(8, 0.25 * rows)


def test_kv_memory_and_buffers_stay_where_they_are():
    scheduler = tiny.scheduler_over("paged", 96, 4)
    executor = tiny.executor_over(scheduler.allocator)
    before = executor.kv.data_ptrs
    tiny.serve(scheduler, executor, tiny.requests())
    assert executor.kv.data_ptrs == before


def test_forced_outputs_are_what_the_model_goes_on_with():
    prompt, forced = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3]
    rows = []
    for known in range(len(forced)):
        rows.append(tiny.recomputed([*prompt, *forced[:known]], 1)[1][0])
    scheduler = tiny.scheduler_over("paged", 96, 4)
    logits = Logits()
    executor = tiny.executor_over(scheduler.allocator, watch=logits)
    content = TokenContent([*prompt, *forced])
    tiny.serve(scheduler, executor, [Request("a", len(prompt), len(forced), content=content)])
    torch.testing.assert_close(torch.stack(logits.rows["a"]), torch.stack(rows), rtol=1e-4, atol=1e-4)
    assert executor.outputs["a"] == forced


def test_steps_are_measured_and_told_apart():
    scheduler = tiny.scheduler_over("paged", 96, 4)
    executor = tiny.executor_over(scheduler.allocator)
    made = tiny.requests()
    tiny.serve(scheduler, executor, made)
    steps = executor.steps
    assert steps[0].duration_ps == steps[0].device_ps
    assert all(one.duration_ps >= one.device_ps > 0 for one in steps)
    assert any(one.num_decodes and not one.num_chunk_tokens for one in steps)
    assert any(one.num_chunk_tokens for one in steps)
    assert sum(one.num_decodes for one in steps) <= sum(request.num_stop_tokens for request in made)


@pytest.mark.parametrize("place", ["pack", "columns", "slot_mapping"])
def test_no_clock_runs_while_the_host_prepares_what_a_step_is_told(monkeypatch, place):
    """What stands between a step's start and its first command would be counted as the device's time."""
    scheduler = tiny.scheduler_over("paged", 96, 4)
    executor = tiny.executor_over(scheduler.allocator)
    events = []

    def noted(owner, name, word):
        inner = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (events.append(word), inner(*a, **k))[1])

    owners = {"pack": executor.mixed, "columns": executor.sequences, "slot_mapping": executor.table}
    noted(owners[place], place, "host")
    noted(executor.kv, "move_blocks", "device")
    clock, inner = executor._clock, type(executor._clock).start
    monkeypatch.setattr(type(clock), "start", lambda self: (events.append("clock"), inner(self))[1])
    executor._launch.keywords["prepared"] = clock.start
    tiny.serve(scheduler, executor, tiny.requests())
    assert events.count("clock") == len(executor.steps) == events.count("device")
    assert events.count("host") > 0
    for before, after in itertools.pairwise(events):
        assert (after == "device") == (before == "clock"), "the clock starts right before the first command"
