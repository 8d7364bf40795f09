"""Attention over a paged KV cache: one interface, a plain torch specification, and Triton kernels.

Letters of shapes, here and in every docstring of this package: T tokens of the batch, S sequences, H query heads, KH KV
heads, D head size (elements), NB blocks of the cache, BS block size (tokens a block).
"""
