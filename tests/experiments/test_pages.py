"""Pages of the allocator `virtual`: tokens of a page by hand, page groups of a pool, what is refused."""

import pytest

from engine.core.catalogue import lookup, model_names
from experiments.exits import UsageError
from experiments.figures.stored import Stored
from experiments.resolve import plan_of
from experiments.settings import Config

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    "model,tp,dtype,page_bytes,tokens",
    [
        ("llama-3-8b", 1, "bf16", 2 * MIB, 1024),  # 8 KV heads x 128 x 2 B = 2,048 B
        ("llama-3-8b", 1, "bf16", 64 * KIB, 32),
        ("llama-3-8b", 2, "bf16", 2 * MIB, 2048),  # 4 heads a rank
        ("llama-3-8b", 1, "fp8", 2 * MIB, 2048),
        ("yi-6b", 1, "bf16", 2 * MIB, 2048),  # 4 heads
        ("yi-34b", 1, "bf16", 128 * KIB, 64),
        ("opt-13b", 1, "bf16", 2 * MIB, 204),  # 40 heads x 128 x 2 B = 10,240 B: 204.8
        ("opt-13b", 1, "bf16", 64 * KIB, 6),
        ("deepseek-v3", 1, "bf16", 2 * MIB, 1820),  # a latent of 576 x 2 B, the same on every rank
        ("deepseek-v3", 8, "bf16", 2 * MIB, 1820),
    ],
)
def test_tokens_of_a_page_by_hand(model, tp, dtype, page_bytes, tokens):
    assert lookup(model).kv_spec(dtype, tp, 1).page_tokens(page_bytes) == tokens


@pytest.mark.parametrize("model", model_names())
def test_the_tensors_of_a_rank_hold_just_what_a_token_takes(model):
    spec = lookup(model).kv_spec("bf16", 1, 1)
    page = 2 * MIB
    assert spec.num_tensors == spec.layers_per_rank * (1 if spec.kind == "mla" else 2)
    needed, there = spec.page_tokens(page) * spec.bytes_per_token, spec.page_group_bytes(page)
    assert needed <= there < needed + spec.bytes_per_token + spec.num_tensors


def plan(**keys):
    return plan_of(Config.of(num_requests=5, **keys))


def test_a_pool_is_its_bytes_in_whole_page_groups():
    made = plan(allocator="paged,virtual", page_bytes="64KiB,2MiB", model="llama-3-8b", kv_bytes="10GiB")
    cells = {(cell.allocator, cell.block_size): cell.num_blocks for cell in made.cells}
    # 10 GiB / (2 x 32 tensors x page): 2,560 groups of 64 KiB pages, 80 of 2 MiB; 131,072 B a token and 16-token blocks
    assert cells == {("paged", 16): 5120, ("virtual", 32): 2560, ("virtual", 1024): 80}
    assert sum("virtual: a page of" in note for note in made.notes) == 2


def test_what_a_page_cannot_hold_is_lost_to_the_pool():
    """OPT-13B: 12,897,484,800 B are 76 groups of 80 pages of 2 MiB, with 204 tokens each."""
    made = plan(allocator="virtual")
    assert [(cell.block_size, cell.num_blocks) for cell in made.cells] == [(204, 76)]
    assert "15,504 of the pool's 15,744 tokens" in made.notes[-1]


def test_other_configurations_are_what_they_were():
    assert plan(allocator="paged").config.kv.page_bytes is None
    assert plan(allocator="virtual").config.kv.page_bytes == (2 * MIB,)


@pytest.mark.parametrize(
    "keys,message",
    [
        ({"page_bytes": "5000"}, "multiples of 4KiB"),
        ({"page_bytes": "4KiB"}, "not one token of opt-13b"),
        ({"page_bytes": "64KiB,68KiB"}, "as many tokens as one of 65,536 B"),
        ({"page_bytes": "1GiB"}, "the pool has 12,897,484,800 B"),
        ({"sweep": {"virtual": [16]}}, "use kv.page_bytes"),
        ({"backend": "cpu", "kv_tokens": 1000}, "leave out --backend"),
        ({"num_samples": 2}, "cannot fork"),
        ({"preemption": "swap", "host_blocks": 4}, "cannot swap"),
    ],
)
def test_what_cannot_be_is_refused(keys, message):
    with pytest.raises(UsageError, match=message):
        plan(allocator="virtual", **keys)


def stored(folder, rows):
    lines = [
        "cell,seed,allocator,block_size",
        *(f"{name}-{size}-{seed},{seed},{name},{size}" for name, size, seed in rows),
    ]
    (folder / "summary.csv").write_text("\n".join(lines) + "\n")
    return Stored(folder)


def test_figures_of_one_block_size_show_the_first_page_size_beside_it(tmp_path):
    rows = [("paged", 16, 0), ("paged", 32, 0), ("virtual", 204, 0), ("virtual", 6, 0), ("virtual", 204, 1)]
    made = stored(tmp_path, rows)
    assert list(made.base["cell"]) == ["paged-16-0", "virtual-204-0", "virtual-204-1"]
    assert (made.base_block_size, made.allocators) == (16, ["virtual", "paged"])


def test_pages_of_the_base_size_are_like_blocks(tmp_path):
    made = stored(tmp_path, [("paged", 16, 0), ("virtual", 16, 0), ("virtual", 204, 0)])
    assert list(made.base["cell"]) == ["paged-16-0", "virtual-16-0"]


def test_pages_alone_are_shown(tmp_path):
    made = stored(tmp_path, [("virtual", 204, 0), ("virtual", 6, 0)])
    assert list(made.base["cell"]) == ["virtual-6-0"]
    assert made.base_block_size == 6
