"""Fused Triton kernels of the model's steps between the matrix products, and their launchers.

`triton_ops` is the interface of `engine.model.ops` over `norm`, `rotary` and `gate`; `sample` picks tokens. Importing
the package imports no Triton. Contents are trusted, as everywhere on the device: positions inside the rotary table,
slots distinct and inside the cache. Letters of shapes as in `engine.attention`; E hidden size, I intermediate size,
P rows of the rotary table, V vocabulary.
"""
