"""Prefill attention for Hopper (sm_90) in Gluon: two producer warps, two consumer warpgroups, TMA, mbarriers, wgmma.

The same function as `prefill` without window and soft-cap. A program stays on its multiprocessor and takes one tile of
128 query rows for one KV head after the other (row r: query r // group, head r % group), so that the first loads of a
tile run while the one before is still at work. Slots that no token filled may hold anything: K is masked by selection,
and where the last tile of keys passes the end of the sequence its V is cleared behind it.

Times are in `results/LOG.md`. Compiled ahead of time with Triton 3.6.0 and 3.7.1, no loop spills a vector and no matrix
instruction is serialized (`results/reference/kernels/resources.csv`).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from engine.attention.kernels.hopper_consumer import ROWS, consume
from engine.attention.kernels.hopper_producer import WORK_FIELDS, WORK_SLOTS, produce_keys, produce_values


@gluon.jit
def barriers(number: gl.constexpr, count: gl.constexpr):
    """mbarriers that `count` arrivals complete."""
    made = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(number):
        mbarrier.init(made.index(index), count=count)
    return made


@gluon.jit
def _rings(dtype: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """Buffers of K and V [STAGES, BLOCK_N, D], and when each is full (one arrival and its bytes), and empty (two)."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    k_buffers = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], layout)
    v_buffers = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], layout)
    k_ring = (k_buffers, barriers(STAGES, 1), barriers(STAGES, 2))
    v_ring = (v_buffers, barriers(STAGES, 1), barriers(STAGES, 2))
    return k_ring, v_ring


@gluon.jit(do_not_specialize=["table_s", "rows_b", "num_seqs", "num_kv_heads", "group", "tile_queries", "block_size"])
def hopper_kernel(
    Q, Q_DESC, K_DESC, V_DESC, TABLE, QUERY_STARTS, SEQ_LENS, NEXT_ITEM, OUT, q_t, q_h, kv_h, table_s, out_t, out_h,
    rows_b, scale, num_seqs, num_kv_heads, group, tile_queries, block_size,
    D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, BOX: gl.constexpr, GROUP: gl.constexpr,
    PAGES: gl.constexpr, TMA_Q: gl.constexpr, DYNAMIC: gl.constexpr, PINGPONG: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Grid (programs): any number; NEXT_ITEM [1] zero at the start if DYNAMIC; Q_DESC [T, H, D] if TMA_Q."""
    dtype: gl.constexpr = K_DESC.dtype
    q_buffers = gl.allocate_shared_memory(dtype, [2 * WORK_SLOTS, ROWS, D], gl.NVMMASharedLayout(128, 16))
    rings = _rings(dtype, BLOCK_N, D, STAGES)
    work = gl.allocate_shared_memory(gl.int32, [WORK_SLOTS, WORK_FIELDS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    work_ring = (work, barriers(WORK_SLOTS, 1), barriers(WORK_SLOTS, 3))
    fence_async_shared()
    k_ring, v_ring = rings
    gl.warp_specialize(
        [
            (consume, (Q, OUT, q_buffers, rings, work_ring, q_t, q_h, out_t, out_h, scale, group, tile_queries,
                       BLOCK_N, D, STAGES, PINGPONG, GROUP, TMA_Q, 0)),
            (consume, (Q, OUT, q_buffers, rings, work_ring, q_t, q_h, out_t, out_h, scale, group, tile_queries,
                       BLOCK_N, D, STAGES, PINGPONG, GROUP, TMA_Q, 1)),
            (produce_keys, (Q_DESC, K_DESC, q_buffers, k_ring, work_ring, TABLE, QUERY_STARTS, SEQ_LENS, NEXT_ITEM,
                            table_s, kv_h, rows_b, num_seqs, num_kv_heads, tile_queries, block_size,
                            BLOCK_N, STAGES, BOX, PAGES, DYNAMIC, GROUP, TMA_Q)),
            (produce_values, (V_DESC, v_ring, work_ring, TABLE, table_s, kv_h, rows_b, tile_queries, block_size,
                              BLOCK_N, STAGES, BOX, PAGES)),
        ],
        [4, 1, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
