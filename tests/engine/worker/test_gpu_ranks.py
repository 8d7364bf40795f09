"""Two CUDA devices: the logits of one, and a clean end when a rank is killed.

PAGELAB_GPU=1 python -m pytest tests/engine/worker/test_gpu_ranks.py
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from experiments.bench import ranks_checks  # noqa: E402
from experiments.bench.ranks_parts import Parts  # noqa: E402
from tests.engine.worker.tiny import ON_DEVICE  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_DEVICE or torch.cuda.device_count() < 2, reason="not two devices, or not PAGELAB_GPU=1"),
]


@pytest.mark.parametrize("part", [ranks_checks.equal, ranks_checks.kill], ids=["equal", "kill"])
def test_what_must_hold_over_two_devices_holds(part, tmp_path):
    rows = []
    part(Parts("cuda", 2, tmp_path, rows.append, rows.append))
    judged = [row for row in rows if row["holds"] is not None]
    assert judged
    assert [row for row in judged if not row["holds"]] == []
