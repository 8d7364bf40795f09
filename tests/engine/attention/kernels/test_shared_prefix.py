"""Decode over shared prefixes in Triton's interpreter against float64: plain attention, whoever shares what."""

from dataclasses import replace
from random import Random

import pytest
import torch

from engine.attention.checks import AttentionInputError
from engine.attention.kernels import launch_shared, shared_prefix
from engine.attention.kernels.launch_decode import decode_attention, shape_of
from engine.attention.kernels.launch_shared import SharedCut, plan_shared, shared_prefix_attention
from engine.attention.kernels.tuning import DecodeConfig
from engine.attention.kernels.tuning_shared import SharedConfig, shared_config
from engine.attention.shared_prefix import SharedPrefixes
from tests.engine.attention.kernels.pools import Case, assert_close
from tests.engine.attention.kernels.shared_cases import SharedCase

OWN_WHOLE = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=1, min_piece_tokens=32)
OWN_SPLIT = DecodeConfig(block_n=32, num_warps=2, num_stages=2, programs=6, min_piece_tokens=32)
ONE_PIECE = SharedConfig(16, 32, 2, 2, programs=1, min_piece_tokens=32, own=OWN_WHOLE)
PIECES = SharedConfig(16, 32, 2, 2, programs=6, min_piece_tokens=32, own=OWN_SPLIT)
WIDE = SharedConfig(64, 16, 2, 2, programs=3, min_piece_tokens=16, own=OWN_SPLIT)


def attend(case, config, shared=None, **options):
    k_cache, v_cache, block_table = case.paged()
    return shared_prefix_attention(
        case.q, k_cache, v_cache, block_table, case.seq_lens, shared or case.shared(),
        scale=case.scale, max_seq_len=case.max_seq_len, config=config, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "block_size,config", [(1, WIDE), (16, ONE_PIECE), (16, PIECES), (16, WIDE), (24, PIECES), (64, PIECES), (64, WIDE)]
)
def test_sharing_is_plain_attention(block_size, config):
    blocks = -(-70 // block_size)
    shared = blocks * block_size
    case = SharedCase([((0, 2, 3), blocks)], [shared + 33, 40, shared + 1, shared + 64], block_size=block_size)
    assert_close(attend(case, config), case.expected())


@pytest.mark.parametrize(
    "num_kv_heads,group,head_size,dtype,layout,config",
    [
        (1, 1, 80, torch.float16, "block_first", PIECES),
        (2, 1, 128, torch.bfloat16, "interleaved", PIECES),
        (1, 5, 96, torch.bfloat16, "kv_first", WIDE),
        (2, 8, 64, torch.float16, "interleaved", ONE_PIECE),
        (1, 16, 256, torch.float32, "block_first", ONE_PIECE),
        (1, 17, 16, torch.float32, "kv_first", PIECES),
    ],
)
def test_heads_sizes_types_and_layouts(num_kv_heads, group, head_size, dtype, layout, config):
    options = {"num_kv_heads": num_kv_heads, "group": group, "head_size": head_size, "dtype": dtype, "layout": layout}
    case = SharedCase([((1, 0, 2), 5)], [80 + 17, 80 + 40, 80 + 1], **options)
    assert_close(attend(case, config), case.expected())


@pytest.mark.parametrize("config", [ONE_PIECE, PIECES], ids=["one-piece", "pieces"])
def test_a_row_without_tokens_of_its_own_and_rows_without_any(config):
    case = SharedCase([((0, 1, 4), 4)], [64, 100, 0, 5, 64, 0])
    out = attend(case, config, out=torch.full_like(case.q, torch.nan))
    assert_close(out, case.expected())
    assert torch.equal(out[[2, 5]], torch.zeros_like(out[[2, 5]]))


def test_a_table_may_end_where_the_shared_part_does():
    case = SharedCase([((0, 1), 4)], [64, 64])
    k_cache, v_cache, block_table = case.paged()
    room = torch.full((3, 4), 2**31 - 1, dtype=torch.int32)  # behind the table: an address far outside
    room[:2] = block_table[:, :4]
    out = shared_prefix_attention(
        case.q, k_cache, v_cache, room[:2], case.seq_lens, case.shared(), scale=case.scale, max_seq_len=64,
        config=PIECES,
    )  # fmt: skip
    assert_close(out, case.expected())


@pytest.mark.parametrize("config", [ONE_PIECE, WIDE], ids=["one-piece", "wide"])
def test_several_groups_and_room_for_more(config):
    case = SharedCase([((5, 1), 3), ((0, 6, 2), 7), ((3, 4), 1)], [150, 70, 112, 17, 40, 49, 113, 20], group=2)
    assert_close(attend(case, config, case.shared(num_groups=6)), case.expected())


@pytest.mark.parametrize("groups", [[], [((0, 1), 0)], [((2,), 3)]], ids=["no-group", "nothing-shared", "one-row"])
def test_groups_that_share_nothing_and_rows_alone(groups):
    case = SharedCase(groups, [70, 33, 80])
    assert_close(attend(case, PIECES), case.expected())


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow if n > 4 else ()) for n in range(16)])
def test_random_batches(seed):
    """Any partition of the rows, any prefix that fits, any own lengths."""
    rng = Random(seed)
    block_size, count = rng.choice([1, 8, 16, 24]), rng.randint(1, 7)
    rows, groups, lengths = list(range(count)), [], [rng.choice([0, 1, rng.randint(1, 60)]) for _ in range(count)]
    rng.shuffle(rows)
    while len(rows) > 1 and rng.random() < 0.8:
        members = [rows.pop() for _ in range(rng.randint(1, min(4, len(rows))))]
        blocks = rng.randint(0, 90 // block_size)
        groups.append((members, blocks))
        for row in members:
            lengths[row] = blocks * block_size + rng.choice([0, 1, 31, 32, 33, rng.randint(0, 60)])
    if not any(lengths):
        lengths[0] = 1
    case = SharedCase(groups, lengths, block_size=block_size, group=rng.choice([1, 3, 4]), head_size=32, seed=seed)
    config = rng.choice([ONE_PIECE, PIECES, WIDE])
    assert_close(attend(case, config, case.shared(rng.randint(1, 5))), case.expected())


def test_a_soft_cap_bounds_the_scores():
    case = SharedCase([((0, 1), 3)], [60, 81])
    case.q *= 8
    assert_close(attend(case, PIECES, soft_cap=3.0), case.expected(soft_cap=3.0))


def test_scores_far_apart_in_both_parts_neither_overflow_nor_vanish():
    case = SharedCase([((0, 1), 3)], [60, 81])
    case.q *= 3000
    assert_close(attend(case, PIECES), case.expected(), times=20)


def test_lengths_and_groups_may_change_after_the_bounds_are_fixed():
    """A captured graph is replayed: same tensors, other contents."""
    before = SharedCase([((0, 1), 3)], [60, 81, 20])
    shared = before.shared(num_groups=3)
    shape = shape_of(before.q, 1, 160, 16)
    plan = plan_shared(before.seq_lens, shared, shape, PIECES)
    after = SharedCase([((2, 1), 5), ((0,), 2)], [40, 97, 160])
    now = after.shared(num_groups=3)
    shared.members.copy_(now.members)
    shared.groups.copy_(now.groups)
    again = plan_shared(after.seq_lens, shared, shape, PIECES)
    assert (again.items.shape, again.seqs.shape) == (plan.items.shape, plan.seqs.shape)
    k_cache, v_cache, block_table = after.paged()
    for _ in range(2):  # one plan, two layers
        out = shared_prefix_attention(
            after.q, k_cache, v_cache, block_table, after.seq_lens, shared,
            scale=after.scale, max_seq_len=160, plan=again,
        )  # fmt: skip
        assert_close(out, after.expected())


@pytest.mark.parametrize("programs", [1, 2, 5, 40])
def test_the_items_of_a_plan_are_all_pairs_and_tiles_once(programs):
    case = SharedCase([((5, 1), 30), ((0, 6, 2), 7), ((3, 4), 1)], [150, 700, 112, 17, 40, 490, 113, 20], group=9)
    config = replace(ONE_PIECE, programs=programs)
    plan = plan_shared(case.seq_lens, case.shared(6), shape_of(case.q, 1, 700, 16), config)
    seen = {}
    for leader, first, pairs, tile_m, tile, end, tokens, _ in plan.items.tolist():
        if leader >= 0:
            assert tile < end
            seen.setdefault((leader, first, pairs, tokens), []).extend((tile_m, n) for n in range(tile, end))
    expected = {(5, 0, 18, 480): (2, 15), (0, 2, 27, 112): (2, 4), (3, 5, 18, 16): (2, 1)}
    assert set(seen) == set(expected)
    for key, (rows, tiles) in expected.items():
        assert sorted(seen[key]) == [(m, n) for m in range(rows) for n in range(tiles)]
    assert plan.own_lens.tolist() == [38, 220, 0, 1, 24, 10, 1, 20]
    assert plan.skip.tolist() == [7, 30, 7, 1, 1, 30, 7, 0]


@pytest.mark.parametrize("num_seqs,group,num_groups", [(1, 4, 16), (64, 4, 16), (256, 1, 1), (256, 5, 16), (7, 71, 3)])
def test_no_grouping_has_more_items_than_the_grid(num_seqs, group, num_groups):
    rng = Random(num_seqs)
    for programs in (8, 132, 1000):
        shape = replace(shape_of(torch.empty(num_seqs, 8 * group, 64), 8, 8192, 16), group=group)
        config = SharedConfig(16, 32, 2, 2, programs=programs, min_piece_tokens=rng.choice([32, 256]))
        cut = SharedCut.of(shape, config, num_groups)
        rows, items, target, groups = num_seqs, 0, max(1, programs // 8), []
        while rows and len(groups) < num_groups:
            members = rng.randint(1, rows)
            rows -= members
            groups.append((-(-members * group // 16), rng.randint(1, 256)))
        least = config.min_piece_tokens // 32
        per_piece = max(-(-sum(m * tiles for m, tiles in groups) // target), least)
        items = sum(m * -(-tiles // per_piece) for m, tiles in groups)
        assert items <= cut.most_items


def test_out_and_workspace_are_used_and_nothing_beside_them_is_written():
    case = SharedCase([((0, 1), 3)], [60, 81, 9], num_kv_heads=2)
    wide = torch.full((3, 10, 96), torch.nan)
    out = wide[:, 1:9, :64]
    floats = SharedCut.of(shape_of(case.q, 2, 81, 16), PIECES, 1).floats
    workspace = torch.full((floats + 7,), torch.nan)
    assert attend(case, PIECES, out=out, workspace=workspace) is out
    assert_close(out, case.expected())
    assert wide[:, [0, 9]].isnan().all()
    assert wide[:, :, 64:].isnan().all()
    assert not workspace[:floats].isnan().all()
    assert workspace[floats:].isnan().all()


def test_the_default_rule_answers_for_any_shape():
    case = SharedCase([((0, 1), 3)], [60, 81])
    assert_close(attend(case, None), case.expected())
    for element, head_size, num_seqs in ((2, 256, 64), (2, 128, 1), (2, 128, 64), (4, 64, 64)):
        shape = shape_of(torch.empty(num_seqs, 32, head_size, dtype=torch.float16 if element == 2 else None), 8, 9, 16)
        for capability in (80, 90):
            assert shared_config(replace(shape, capability=capability)).block_m >= 16


def test_a_batch_of_nothing_and_what_is_refused():
    case = SharedCase([((0, 1), 3)], [60, 81])
    empty = Case([])
    none = SharedPrefixes(torch.zeros(0, dtype=torch.int32), torch.zeros(1, 3, dtype=torch.int32))
    assert attend(empty, PIECES, none).shape == (0, 4, 64)
    with pytest.raises(AttentionInputError, match=r"shared members: expected shape \[2\], got \[3\]"):
        attend(case, PIECES, SharedCase([], [1, 1, 1]).shared())
    plan = plan_shared(case.seq_lens, case.shared(), shape_of(case.q, 1, 512, 16), PIECES)
    with pytest.raises(AttentionInputError, match=r"plan: expected one for .*max_seq_len=81"):
        attend(case, None, plan=plan)
    with pytest.raises(AttentionInputError, match="config: expected none beside a plan"):
        attend(case, ONE_PIECE, plan=plan)
    with pytest.raises(AttentionInputError, match="overlap: expected one of"):
        replace(PIECES, overlap="both")


PLANTED = {
    "own tokens that are none": lambda plan: plan.own_lens.add_(16),
    "the own part starts too early": lambda plan: plan.skip.sub_(1),
    "a piece begins too late": lambda plan: plan.items[0, 4].add_(1),
    "a piece is not merged": lambda plan: plan.seqs[:, 1].sub_(1),
    "the output of another member": lambda plan: plan.seqs[:, 3].copy_(plan.seqs[:, 3].flip(0)),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_in_a_plan_are_seen(fault):
    case = SharedCase([((0, 1), 6)], [130, 150], group=3)
    plan = plan_shared(case.seq_lens, case.shared(), shape_of(case.q, 1, 150, 16), PIECES)
    assert_close(attend(case, None, plan=plan), case.expected())
    PLANTED[fault](plan)
    k_cache, v_cache, table = case.paged(unread=False)
    out = shared_prefix_attention(
        case.q, k_cache.nan_to_num(1.0), v_cache.nan_to_num(1.0), table.clamp(0, len(k_cache) - 1), case.seq_lens,
        case.shared(), scale=case.scale, max_seq_len=150, plan=plan,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="differs by"):
        assert_close(out, case.expected())


def test_without_groups_the_bits_are_those_of_plain_decode():
    case = SharedCase([], [70, 33, 0, 200])
    k_cache, v_cache, block_table = case.paged()
    for own in (OWN_WHOLE, OWN_SPLIT):
        plain = decode_attention(
            case.q, k_cache, v_cache, block_table, case.seq_lens, scale=case.scale, max_seq_len=200, config=own
        )
        assert torch.equal(attend(case, replace(PIECES, own=own)), plain)


def test_the_kernels_are_launched_once_each(monkeypatch):
    names = ("shared_kernel", "merge_kernel", "shared_plan_kernel")
    calls = []
    for name in names:
        kernel = getattr(shared_prefix, name)
        monkeypatch.setattr(launch_shared, name, _Counted(name, kernel, calls))
    case = SharedCase([((0, 1), 3)], [60, 81])
    assert_close(attend(case, PIECES), case.expected())
    assert sorted(calls) == sorted(names)


class _Counted:
    """A kernel that says when it is launched."""

    def __init__(self, name, kernel, calls):
        self.name, self.kernel, self.calls = name, kernel, calls

    def __getitem__(self, grid):
        self.calls.append(self.name)
        return self.kernel[grid]
