"""The engine: a model's weights on a device, and executors over the allocators that it is given, one at a time."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.layouts import KVLayout
from engine.core import catalogue
from engine.core.kv_spec import KVSpec
from engine.core.option_checks import check_choice
from engine.model.collectives import ALONE, Collectives
from engine.model.decoder import Decoder
from engine.model.latent_projections import up_projections
from engine.model.load import load_model
from engine.model.ops import Ops, TorchOps
from engine.model.share import WHOLE, Share
from engine.versions import driver_version, version_of
from engine.worker.backend_choice import backend_of, keeps_latents, never_waits
from engine.worker.budget import (
    DEFAULT_UTILIZATION,
    EngineError,
    KVBudget,
    check_fits,
    check_host_fits,
    check_weights,
    kv_budget,
)
from engine.worker.engine_config import DEVICES, DTYPES, LAYOUTS, EngineConfig
from engine.worker.executor import ModelExecutor
from engine.worker.kv_memory import Kernel, KVMemory
from engine.worker.kv_storage import storage_of
from engine.worker.lead import LONE, Lead
from engine.worker.limits import Limits
from engine.worker.pool_shape import PoolShape
from engine.worker.ran import RowSampling
from engine.worker.shared_prefix import SharingRule
from engine.worker.warm_up import warm_up as run_warm_up

if TYPE_CHECKING:
    from engine.core.allocator import KVAllocator
    from engine.core.request import Request
    from engine.worker.beam_search import BeamParams

__all__ = ["DeviceUnavailable", "Engine", "EngineConfig", "backend_of", "device_of", "layout_of"]


class DeviceUnavailable(RuntimeError):  # noqa: N818
    """The device that was asked for is not there."""


class Engine:
    """Weights and their device. It holds the memory of one executor: making another drops the one before."""

    ranks: Collectives = ALONE

    def __init__(self, config: EngineConfig, share: Share = WHOLE) -> None:
        """Loads the weights. DeviceUnavailable without the device; EngineError or ValueError for what cannot be."""
        config.check()
        self.config, self.share = config, share
        self.device = device_of(config.device)
        self.backend = backend_of(config.attention, self.device, latent=keeps_latents(config.model))
        self.layout = layout_of(config.layout, self.backend)
        dtype = DTYPES.get(config.dtype)
        if dtype is None and self.device.type == "cpu":
            dtype = torch.float32
        seed = config.weights_seed
        if seed is None and catalogue.entry(config.model)[1] is not None:
            seed = 0
        room = partial(check_weights, self.device, config.model)
        self.model = load_model(config.model, dtype=dtype, device=self.device, seed=seed, room=room, share=share)
        self.architecture = self.model.architecture
        self.dtype: torch.dtype = self.model.weights.embedding.dtype
        self.storage = storage_of(config, share.architecture(self.architecture), self.backend, self.dtype, self.device)
        self.limits = self._limits()
        self._kept: list[ModelExecutor] = []

    @property
    def executor_in_use(self) -> ModelExecutor | None:
        """The one whose memory is there."""
        return self._kept[0] if self._kept else None

    def _limits(self) -> Limits:
        config, own = self.config, self.architecture.max_model_len
        longest = config.max_model_len or own
        if longest > own:
            raise EngineError(f"max_model_len: {config.model} takes at most {own} tokens, got {longest}")
        return Limits(config.max_num_seqs, config.max_num_batched_tokens, longest)

    # KV memory ----------------------------------------------------------------------------------------------------

    @property
    def kv_spec(self) -> KVSpec:
        """K and V of the model over its ranks."""
        return self.architecture.kv_spec(self.storage.dtype, self.share.size)

    def block_bytes(self, block_size: int) -> int:
        """K and V, or the latents, of one block on one rank, all layers."""
        return self.kv_spec.block_bytes(block_size)

    def budget(self, block_size: int, *, utilization: float = DEFAULT_UTILIZATION) -> KVBudget:
        """How much is left for KV, measured: the largest batch is run and the graphs are captured over a tiny pool.

        EngineError if not one block is.
        """
        self._release()
        shape = PoolShape(block_size)
        if self.share.size == 1 or self.device.type == "cpu":  # ranks on devices go on together, or all fail
            check_fits(self.device, shape.num_blocks, self.block_bytes(block_size), None)
        executor = self._assemble(shape, "paged")
        try:
            if self.device.type == "cuda":
                run_warm_up(executor)
            return kv_budget(self.device, self.block_bytes(block_size), utilization, self._kv_limit)
        finally:
            executor.close()

    @property
    def _kv_limit(self) -> int | None:
        limit = self.config.kv_limit_bytes
        return limit[self.share.rank] if isinstance(limit, tuple) else limit

    def release(self) -> None:
        """Takes the KV memory of the executor in use back, whoever holds that executor."""
        self._release()

    def close(self) -> None:
        """Gives the KV memory back; of several ranks, ends the others too, and nothing can be run any more."""
        self._release()

    def _release(self) -> None:
        for executor in self._kept:
            executor.close()
        self._kept.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def executor(
        self,
        allocator: KVAllocator,
        *,
        kernel: Kernel = "paged",
        warm_up: bool = True,
        sampling: Callable[[Request], RowSampling] | None = None,
        stops: Callable[[Request, Sequence[int]], bool] | None = None,
        beams: Callable[[Request], BeamParams] | None = None,
        watch: Callable[[list[Request], torch.Tensor], None] | None = None,
        lead: Lead = LONE,
    ) -> ModelExecutor:
        """An executor over this allocator's blocks; see `ModelExecutor` for the callables.

        `kernel="contiguous"`: attention reads from a sequence's first block on, for allocators whose blocks are
        adjacent. `warm_up`: compiles and captures before the first step (on a GPU). EngineError, before anything is
        allocated, for a pool that does not fit or a block size that the attention backend does not take.
        """
        self.check_pool(allocator, kernel)
        made = self._assemble(allocator, kernel, sampling=sampling, stops=stops, beams=beams, watch=watch, lead=lead)
        self._kept.append(made)
        if warm_up and self.device.type == "cuda":
            run_warm_up(made)
        return made

    def check_pool(self, allocator: Any, kernel: Kernel) -> None:
        """Releases the memory in use. EngineError for a pool that has no room then, or a kernel that cannot read it."""
        check_choice("kernel", kernel, get_args(Kernel))
        if kernel == "contiguous" and not getattr(allocator, "contiguous", False):
            raise EngineError("kernel contiguous: this allocator's blocks are not adjacent: use the paged kernel")
        size = allocator.block_size
        self.backend.check_block_size(size)
        self._release()
        check_fits(self.device, self._kv_blocks(allocator), self.block_bytes(size), self._kv_limit)
        check_host_fits(getattr(allocator, "host_blocks", 0), self.block_bytes(size))

    def _kv_blocks(self, allocator: Any) -> int:
        """Blocks of this rank's KV tensors, at least as many as the allocator has."""
        return int(allocator.num_blocks)

    def _assemble(self, allocator: Any, kernel: Kernel, **options: Any) -> ModelExecutor:
        shape = self.share.architecture(self.architecture)
        kv = KVMemory(
            self.backend,
            [shape.layer_config(layer) for layer in range(shape.num_layers)],
            num_blocks=self._kv_blocks(allocator),
            block_size=allocator.block_size,
            dtype=self.storage.dtype,
            device=self.device,
            layout=self.layout,
            kernel=kernel,
            host_blocks=getattr(allocator, "host_blocks", 0),
            up=up_projections(shape, self.model.weights),
            scales=self.storage.scales,
        )
        tokens = max(self.limits.max_num_batched_tokens, self.limits.max_num_seqs)
        rows = self.limits.max_num_seqs
        weights, ops, ranks = self.model.weights, self.ops(), self.ranks
        decoder = Decoder(shape, weights, ops, kv, max_tokens=tokens, max_num_seqs=rows, ranks=ranks)
        sharing = self._sharing(allocator, kernel)
        return ModelExecutor(decoder, kv, allocator, self.limits, graphs=self.graphs, sharing=sharing, **options)

    def _sharing(self, allocator: Any, kernel: Kernel) -> SharingRule | None:
        """When shared prefixes are used; None: never."""
        able = self.config.shared_prefix_kernel and self.backend.capabilities().shared_prefixes and kernel == "paged"
        if not able:
            return None
        size, expected = allocator.block_size, bool(getattr(allocator, "enable_caching", False))
        token_bytes = self.block_bytes(size) // size // self.architecture.num_layers
        return SharingRule(size, token_bytes, expected=expected)

    @property
    def graphs(self) -> bool:
        """Whether steps are CUDA graphs: wanted, and with an attention backend that can be captured."""
        return self.config.graphs and self.device.type == "cuda" and never_waits(self.backend)

    def ops(self) -> Ops:
        """Fused beside Triton's own attention, and on a device beside anything but the specification."""
        name = self.backend.get_name()
        if name.startswith("reference") or (self.device.type == "cpu" and not name.startswith("triton")):
            return TorchOps()
        from engine.model.kernels.triton_ops import TritonOps

        return TritonOps()

    # for the record -----------------------------------------------------------------------------------------------

    @property
    def provenance(self) -> dict[str, Any]:
        """What a measurement was made with."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.processor()
        return {
            "device": name or platform.machine(),
            "device_type": self.device.type,
            "threads": torch.get_num_threads(),
            "driver": driver_version() if self.device.type == "cuda" else None,
            "torch": torch.__version__,
            "triton": version_of("triton"),
            "dtype": str(self.dtype).removeprefix("torch."),
            "attention": self.backend.get_name(),
            "layout": self.layout.value,
            **self.storage.provenance,
            "graphs": self.graphs,
            "tensor_parallel_size": self.share.size,
            "shared_prefix_kernel": self.config.shared_prefix_kernel and self.backend.capabilities().shared_prefixes,
            "max_num_seqs": self.limits.max_num_seqs,
            "max_num_batched_tokens": self.limits.max_num_batched_tokens,
            "max_model_len": self.limits.max_model_len,
            "weights": asdict(self.model.provenance),
        }


def device_of(name: str) -> torch.device:
    """The device; DeviceUnavailable if it is not there, ValueError if nothing is called so."""
    check_choice("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(
            "no CUDA device: torch sees none on this machine; use the cpu backend, or run where nvidia-smi shows a GPU "
            "and a CUDA build of torch is installed"
        )
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def layout_of(name: str | None, backend: type[AttentionBackend]) -> KVLayout:
    """The layout of that name, or the backend's own; errors as `AttentionBackend.pick_layout`."""
    if name is None:
        return backend.pick_layout()
    check_choice("layout", name, LAYOUTS, "KV layout")
    return backend.pick_layout(LAYOUTS[name])
