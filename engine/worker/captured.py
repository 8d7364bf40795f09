"""Steps of fixed sizes: captured once as CUDA graphs and replayed, or issued command by command with the same sizes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable

import torch


class CapturedSteps:
    """Graphs by key, all in one pool of memory. Without capture every run issues its commands anew, on any device."""

    def __init__(self, issue: Callable[..., torch.Tensor], *, graphs: bool, collectives: bool = False) -> None:
        """`issue(*key)` issues a step's commands and returns what stays where it is from run to run. `collectives`: it
        waits for other ranks, too."""
        self._issue = issue
        self.captures = graphs
        # Threads of torch that watch over collectives ask for events meanwhile: none of the capture's business.
        self._mode = "thread_local" if collectives else "global"
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if graphs else None

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self, *key: Hashable) -> None:
        """Captures a step; it is issued once before, which compiles kernels and lets cuBLAS take its workspace. Without
        capture it is issued, no more."""
        if not self.captures:
            self._issue(*key)
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._issue(*key)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what the collector finds now, graphs of an engine before, must not be freed during a capture
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode=self._mode):
                result = self._issue(*key)
        finally:
            if collecting:
                gc.enable()
        self._graphs[key] = graph, result

    def forget(self) -> None:
        """Gives the graphs and their memory back."""
        self._graphs.clear()
        self._pool = None

    def has(self, *key: Hashable) -> bool:
        """Whether the step needs no capture any more."""
        return not self.captures or key in self._graphs

    def run(self, *key: Hashable) -> torch.Tensor:
        """One step; captured before where graphs are."""
        if not self.captures:
            return self._issue(*key)
        graph, result = self._graphs[key]
        graph.replay()
        return result
