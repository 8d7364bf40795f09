"""Triton kernels of paged attention and their launchers, over raw tensors and strided views.

`launch` has all launchers; `tuning` one configuration type and one fixed rule per kernel; `resources` what every
variant takes of a multiprocessor. `decode` and `prefill` are the kernels, on the parts in `tiles` and `work`.
Importing the package imports no Triton.
"""
