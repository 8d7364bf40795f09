"""Decoder-only models on a paged KV cache: what they compute, their weights, and how both are read from files.

Llama, Mistral, Qwen2, Qwen3, OPT, and DeepSeek-V2 and -V3 without experts, from a Hugging Face folder, a GGUF file, or
a catalogue name with seeded random weights. A model meets its KV only through `KVMemory`; nothing here knows a block.
"""

from engine.model.architecture import Architecture, architecture_of
from engine.model.decoder import Decoder, KVMemory
from engine.model.load import LoadedModel, Provenance, load_model
from engine.model.ops import Ops, TorchOps
from engine.model.random_weights import random_weights
from engine.model.tokenizer import Tokenizer
from engine.model.weights import LayerWeights, Weights

__all__ = [
    "Architecture",
    "Decoder",
    "KVMemory",
    "LayerWeights",
    "LoadedModel",
    "Ops",
    "Provenance",
    "Tokenizer",
    "TorchOps",
    "Weights",
    "architecture_of",
    "load_model",
    "random_weights",
]
