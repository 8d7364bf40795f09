"""Before the first request: every kernel compiled, every graph captured, every buffer as large as it will be.

Afterwards no step compiles anything and the device's allocator asks for no more memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.worker.executor import ModelExecutor


@torch.inference_mode()
def warm_up(executor: ModelExecutor) -> None:
    """Runs every size of step once, the largest first, and captures it where graphs are. No block is changed."""
    executor.mixed.capture_all()
    executor.decode.capture_all(executor.sharing.can_pay)
    executor.kv.warm_up()
    if executor.table.device.type == "cuda":
        torch.cuda.synchronize()
