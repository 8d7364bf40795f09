"""RMSNorm and the gate in Triton's interpreter, against the specification in float64."""

import pytest
import torch

from engine.model.kernels.triton_ops import TritonOps
from engine.model.ops import TorchOps
from tests.engine.model.kernels.close import assert_rounded, bits

OPS, SPECIFIED = TritonOps(), TorchOps()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = [(1, 64, DTYPES[0]), (3, 100, DTYPES[1]), (2, 576, DTYPES[2]), (2, 8192, DTYPES[0]), (3, 1, DTYPES[2])]


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows_before_canaries(values):
    """The same rows as the first of a larger buffer, whose other rows are NaN."""
    buffer = values.new_full((len(values) + 2, *values.shape[1:]), torch.nan)
    buffer[: len(values)] = values
    return buffer, buffer[: len(values)]


@pytest.mark.parametrize("num_tokens,columns,dtype", CASES)
def test_norm_is_the_specified_one_and_stays_in_its_rows(num_tokens, columns, dtype):
    x, weight = normal(num_tokens, columns, dtype=dtype) * 3, normal(columns, dtype=dtype, seed=1)
    buffer, out = rows_before_canaries(torch.zeros_like(x))
    expected = SPECIFIED.norm(x.double(), weight.double(), 1e-5)
    assert OPS.norm(x, weight, 1e-5, out) is out
    assert_rounded(out, expected)
    assert buffer[num_tokens:].isnan().all()
    assert torch.equal(OPS.norm(x, weight, 1e-5), out)
    assert torch.equal(OPS.norm(x, weight, 1e-5, x), out)


@pytest.mark.parametrize("num_tokens,columns,dtype", CASES)
def test_the_sum_is_stored_and_the_norm_is_of_what_was_stored(num_tokens, columns, dtype):
    x, weight = normal(num_tokens, columns, dtype=dtype), normal(columns, dtype=dtype, seed=1)
    before = normal(num_tokens, columns, dtype=dtype, seed=2)
    buffer, residual = rows_before_canaries(before)
    total = x.double() + before.double()
    out = OPS.add_norm(x, residual, weight, 1e-6)
    assert_rounded(residual, total)
    assert_rounded(out, SPECIFIED.norm(residual.double(), weight.double(), 1e-6))
    assert buffer[num_tokens:].isnan().all()
    assert torch.equal(OPS.add_norm(x, before, weight, 1e-6, x), out), "out may be x"
    assert torch.equal(before, residual)


def test_without_eps_a_row_and_its_multiple_have_one_norm_and_rows_do_not_meet():
    x, weight = normal(2, 96), torch.ones(96)
    once = OPS.norm(x, weight, 0.0)
    assert torch.equal(OPS.norm(x * 4, weight, 0.0), once)
    assert torch.equal(OPS.norm(x[1:].contiguous(), weight, 0.0)[0], once[1])
    assert_rounded(once.double().square().mean(1).float(), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("num_tokens,columns,dtype", [*CASES[:3], (2, 2560, torch.float16), (2, 1, torch.float32)])
def test_gate_is_the_specified_one_and_stays_in_its_rows(num_tokens, columns, dtype):
    gate_up = normal(num_tokens, 2 * columns, dtype=dtype) * 4
    buffer, out = rows_before_canaries(gate_up.new_zeros(num_tokens, columns))
    assert OPS.gate(gate_up, out) is out
    assert_rounded(out, SPECIFIED.gate(gate_up.double()))
    assert buffer[num_tokens:].isnan().all()
    assert torch.equal(OPS.gate(gate_up), out)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_the_gate_is_linear_in_its_second_half_and_shut_far_below_zero():
    gate, up = normal(1, 32), normal(1, 32, seed=1)
    once = OPS.gate(torch.cat((gate, up), 1))
    assert torch.equal(OPS.gate(torch.cat((gate, up * 2), 1)), once * 2)
    gate[0, :3] = torch.tensor([-1e30, -200.0, 200.0])
    ends = OPS.gate(torch.cat((gate, up), 1))[0, :3]
    assert torch.equal(ends, torch.tensor([0.0, 0.0, 200.0 * up[0, 2]]))


def test_no_tokens_launch_nothing():
    empty, weight = torch.zeros(0, 16), torch.ones(16)
    assert OPS.norm(empty, weight, 0.0).shape == OPS.add_norm(empty, empty, weight, 0.0).shape == (0, 16)
    assert OPS.gate(torch.zeros(0, 32)).shape == (0, 16)


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda x, w: OPS.norm(x.double(), w, 0.0), "x: expected float16 or bfloat16 or float32, got float64"),
        (lambda x, w: OPS.norm(x.t(), w, 0.0), r"x: expected contiguous float32 \[16, 2\].* strides \[1, 16\]"),
        (lambda x, w: OPS.norm(x, w[:8], 0.0), r"weight: expected contiguous float32 \[16\].*, got float32 \[8\]"),
        (lambda x, w: OPS.norm(x, w.half(), 0.0), "weight: expected contiguous float32 .*got float16"),
        (lambda x, w: OPS.norm(x, w, 0.0, x[:1]), r"out: expected .*\[2, 16\].*, got float32 \[1, 16\]"),
        (lambda x, w: OPS.add_norm(x, x[:, ::2], w, 0.0), "residual: expected contiguous"),
        (lambda x, w: OPS.norm(torch.zeros(1, 40_000), torch.ones(40_000), 0.0), "rows of at most 32768 .*40000"),
        (lambda x, w: OPS.gate(x[:, :15].contiguous()), r"gate_up: expected contiguous float32 \[2, 14\]"),
        (lambda x, w: OPS.gate(x, x), r"out: expected contiguous float32 \[2, 8\]"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_written(call, message):
    x = torch.ones(2, 16)
    with pytest.raises(ValueError, match=message):
        call(x, torch.ones(16))
    assert torch.equal(bits(x), bits(torch.ones(2, 16)))
