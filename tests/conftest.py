"""Kernels run in Triton's interpreter unless PAGELAB_GPU=1: decided before anything imports Triton.

One mode per process: what is compiled ahead of time is tested in a subprocess without the variable.
"""

import os

import pytest

if os.environ.get("PAGELAB_GPU") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def one_thread():
    """Small matrices: threads of torch cost more than they save."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
