"""What a step costs in a configuration: the step-time model by its spelling, with the roofline of a model and a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.model_shape import ModelShape
    from experiments.settings import Config
    from sim.cost import RooflineModel, StepModel
    from sim.recorded_executor import Recording

COMPUTE_EFFICIENCY = 0.6
"""Share of the data sheet's FLOP/s that dense layers reach: an assumption, recorded with every run."""
BANDWIDTH_EFFICIENCY = 0.8
"""Share of the data sheet's bandwidth that decoding reaches: an assumption too."""


def step_model_of(config: Config, shape: ModelShape) -> StepModel | Recording | None:
    """The model, or the recording, that `measure.step_model` names; None on the real engine. ValueError if it names
    none."""
    from sim.cost import parse_step_model
    from sim.recorded_executor import PREFIX, read_recording

    asked = config.measure.step_model
    if asked is None:
        return None
    if asked.startswith(PREFIX):
        if config.measure.executor != "cost":
            raise ValueError(f"{asked}: recorded steps go with --executor cost, not {config.measure.executor}")
        return read_recording(Path(asked.removeprefix(PREFIX)))
    return parse_step_model(asked, lambda: roofline(config, shape))


def roofline(config: Config, shape: ModelShape) -> RooflineModel:
    """Compute and memory bounds of the whole model over its tensor-parallel ranks; pipeline stages save no time.

    A mixture of experts is charged for all its experts.
    """
    from engine.core.gpus import lookup_gpu
    from engine.core.parameters import num_parameters, weight_bytes
    from sim.cost import RooflineModel

    assert config.model.gpu is not None
    gpu, ranks = lookup_gpu(config.model.gpu), config.model.tp
    values = shape.head_size + shape.head_size_v
    return RooflineModel(
        num_parameters=num_parameters(shape),
        weight_bytes=weight_bytes(shape),
        kv_bytes_per_token=shape.kv_spec(config.model.kv_cache_dtype).bytes_per_token,
        flops_per_pair=2 * shape.num_kv_layers * shape.num_heads * values,
        flops_per_s=round(COMPUTE_EFFICIENCY * ranks * gpu.bf16_flops_per_s),
        bytes_per_s=round(BANDWIDTH_EFFICIENCY * ranks * gpu.bandwidth_bytes_per_s),
    )
