"""Options of the verbs that read a trace file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from experiments.exits import UsageError
from experiments.whole import MaybeWhole

if TYPE_CHECKING:
    from workloads import Loaded


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReadFlags:
    """How a trace file is read."""

    trace_format: Annotated[
        str,
        Parameter(
            help="Format, if not to be recognised: azure, bailian, blis, burstgpt, lengths, mooncake, pagelab, "
            "sharegpt, timed-trace (never recognised: Mooncake's keys, vLLM's units), vidur, vllm-bench, vllm-custom."
        ),
    ] = "auto"
    on_bad_row: Annotated[str, Parameter(help="refuse or drop (and count).")] = "refuse"
    trace_block_size: Annotated[
        MaybeWhole, Parameter(help="Tokens per block id [mooncake: 512; bailian, timed-trace: 16].", show_default=False)
    ] = None
    recipe: Annotated[
        str | None,
        Parameter(help="Turns of a ShareGPT talk: first-human-pair or vllm-first-two.", show_default=False),
    ] = None
    tokenizer: Annotated[
        str | None,
        Parameter(help="Counts texts: words (whitespace-separated), or a tokenizer.json.", show_default=False),
    ] = None
    num_requests: Annotated[
        MaybeWhole, Parameter(name=("-n", "--num-requests"), help="The first so many rows [all].", show_default=False)
    ] = None
    repeat: Annotated[bool, Parameter(help="Go round where the file holds fewer.", negative=(), show_default=False)] = (
        False
    )

    def load(self, file: Path) -> Loaded:
        """The trace, cut; UsageError with place and reason where it is none."""
        from experiments.arriving import first_requests
        from workloads import load_trace

        try:
            loaded = load_trace(
                file,
                self.trace_format,
                on_bad_row=self.on_bad_row,  # type: ignore[arg-type]
                block_size=self.trace_block_size,
                recipe=self.recipe,
                tokenizer=self.tokenizer,
            )
            if self.num_requests is None:
                return loaded
            return loaded._replace(trace=first_requests(loaded.trace, self.num_requests, again=self.repeat))
        except (ValueError, OSError) as error:
            raise UsageError(str(error)) from error
