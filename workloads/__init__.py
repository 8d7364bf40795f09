"""What arrives: one validated, columnar trace type, its readers, generators and named workloads.

Imports NumPy only; pandas and pyarrow are imported inside the few calls that need them.
"""

from workloads.columns import Trace
from workloads.exports import FORMATS_TO_WRITE, export_trace
from workloads.load import FORMATS, Loaded, load_trace
from workloads.mixes import ClientClass, client_mix
from workloads.named import NAMED_TRACES, named_trace
from workloads.named_sessions import SESSION_TRACES, session_trace
from workloads.rows import TraceError
from workloads.save import save_trace
from workloads.sessions import Shape
from workloads.summary import describe
from workloads.synthetic import synthetic_trace

__all__ = [
    "FORMATS",
    "FORMATS_TO_WRITE",
    "NAMED_TRACES",
    "SESSION_TRACES",
    "ClientClass",
    "Loaded",
    "Shape",
    "Trace",
    "TraceError",
    "client_mix",
    "describe",
    "export_trace",
    "load_trace",
    "named_trace",
    "save_trace",
    "session_trace",
    "synthetic_trace",
]
