"""The verbs `export` and `schema`; what they need is imported inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from experiments.flags import Json

Cells = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def export(
    folder: Path,
    *,
    to: str,
    output: Annotated[Path, Parameter(name=("-o", "--output"))],
    cell: Cells = (),
    at: float | None = None,
    json: Json = False,
) -> int:
    """Write stored results in another program's format.

    Parameters
    ----------
    to
        perfetto (timeline of requests and KV memory), torch-snapshot (the pool for pytorch.org/memory_viz), prometheus
        (vLLM's metric names), vllm-sweep (summary.csv of vLLM's bench sweep; .json: its summary.json), csv (all
        requests).
    output
        File to write; .gz compresses.
    cell
        Only runs whose name begins so, or with COLUMN=VALUE (!= < <= > >=, as --filter-by of plot); may be repeated
        [all; torch-snapshot: the only one].
    at
        Simulated second of a torch-snapshot [the end].
    """
    from experiments.export.verb import export_verb

    return export_verb(folder, to, output, cell, at, as_json=json)


def schema(name: str) -> int:
    """Print the JSON schema of the configuration, of a run's summary, or of a manifest.

    Parameters
    ----------
    name
        config, summary or manifest.
    """
    from experiments.schemas import schema_verb

    return schema_verb(name)
