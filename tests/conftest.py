"""Kernels run in Triton's interpreter unless PAGELAB_GPU=1: decided before anything imports Triton.

One mode per process: what is compiled ahead of time is tested in a subprocess without the variable.
"""

import os

if os.environ.get("PAGELAB_GPU") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")
