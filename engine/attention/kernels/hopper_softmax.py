"""Register work of a consumer warpgroup of the Hopper prefill kernel: weights, their packing, taking turns.

Hardware barriers 8 and 9 say whose turn it is; Triton uses the lower numbers, one per group of warps.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def visible(s, keys, position):
    """Scores of keys up to the row's position, minus infinity for others; keys [N], position [ROWS].

    In assembly, because LLVM gathers the comparisons of a tile in bits of 16-bit registers, and takes them out again.
    """
    keys, position = gl.broadcast(keys[None, :], position[:, None])
    return gl.inline_asm_elementwise(
        "{ .reg .pred seen; setp.le.s32 seen, $2, $3; selp.f32 $0, $1, 0fFF800000, seen; }",
        "=f,f,r,r",
        [s, keys, position],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def weights(s, maximum, position, start, scale, BLOCK_N: gl.constexpr, MASKED: gl.constexpr):
    """Of scores [ROWS, BLOCK_N]: the new maximum in base 2, and the weights relative to it."""
    if MASKED:
        s = visible(s, start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s.type.layout)), position)
    new_maximum = gl.maximum(maximum, gl.max(s, 1) * scale)
    return new_maximum, gl.exp2(s * scale - new_maximum[:, None])


@gluon.jit
def pack(weights, dtype: gl.constexpr):
    """Weights [ROWS, N] float32 as `dtype`, two neighbours of a row in one int32 [ROWS, N / 2].

    Loops carry them so: elements of 16 bits come out of a loop one by one, to be put together again.
    """
    even, odd = gl.split(gl.reshape(weights, [weights.shape[0], weights.shape[1] // 2, 2]))
    if dtype == gl.bfloat16:
        packed = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
    else:
        packed = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
    return packed


@gluon.jit
def unpack(packed, dtype: gl.constexpr, layout: gl.constexpr):
    """The other way: [ROWS, N] of `dtype` in `layout`, where no element changes its thread."""
    even, odd = gl.inline_asm_elementwise(
        "mov.b32 {$0, $1}, $2;", "=h,=h,r", [packed], dtype=(gl.int16, gl.int16), is_pure=True, pack=1
    )
    both = gl.reshape(gl.join(even, odd), [packed.shape[0], packed.shape[1] * 2]).to(dtype, bitcast=True)
    return gl.convert_layout(both, layout, assert_trivial=True)


@gluon.jit
def after(total):
    """`total` as it is, and a place in the code before which it must be known: a sleep that does not happen.

    ptxas otherwise moves the exponentials behind the wait for the values that they are there to hide.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; .reg .f32 both; add.f32 both, $2, $3; setp.eq.f32 never, both, 0f7E123456; "
        "@never nanosleep.u32 1; mov.f32 $0, $2; mov.f32 $1, $3; }",
        "=f,=f,f,f",
        [total],
        dtype=gl.float32,
        is_pure=False,
        pack=2,
    )


@gluon.jit
def _barrier(total, asm: gl.constexpr):
    """A hardware barrier, once a thread: `total` has two elements a thread."""
    return gl.inline_asm_elementwise(
        asm + " mov.f32 $0, $2; mov.f32 $1, $3;", "=f,=f,f,f", [total], dtype=gl.float32, is_pure=False, pack=2
    )


@gluon.jit
def await_turn(total, WHICH: gl.constexpr):
    """Waits until the other warpgroup has issued its products."""
    return _barrier(total, "bar.sync 8, 256;") if WHICH == 0 else _barrier(total, "bar.sync 9, 256;")


@gluon.jit
def pass_turn(total, WHICH: gl.constexpr):
    """Lets the other warpgroup issue its products."""
    return _barrier(total, "bar.arrive 9, 256;") if WHICH == 0 else _barrier(total, "bar.arrive 8, 256;")
