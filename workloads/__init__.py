"""What arrives: one validated, columnar trace type, its readers, generators and named workloads.

Imports NumPy only; pandas and pyarrow are imported inside the few calls that need them.
"""

from workloads.columns import Trace
from workloads.load import FORMATS, Loaded, load_trace
from workloads.named import NAMED_TRACES, named_trace
from workloads.rows import TraceError
from workloads.save import save_trace
from workloads.summary import describe
from workloads.synthetic import synthetic_trace

__all__ = [
    "FORMATS",
    "NAMED_TRACES",
    "Loaded",
    "Trace",
    "TraceError",
    "describe",
    "load_trace",
    "named_trace",
    "save_trace",
    "synthetic_trace",
]
