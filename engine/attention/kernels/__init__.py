"""Triton kernels of paged attention and their launchers, over raw tensors and strided views.

`decode`, `prefill`, `mixed`, `kv_write` and `copy_blocks` hold a launcher each; `tuning` the one fixed choice of tile
sizes per kernel; `resources` what every variant takes of a multiprocessor. Importing the package imports no Triton.
"""
