"""The text of a trace in other tools' formats, as faithful as each can be; `workloads.exports` says what is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from workloads.columns import Trace
from workloads.stamps import NS_PER_MS, NS_PER_S

ORIGIN: Final = datetime(2030, 1, 1, tzinfo=UTC)
AZURE_NS: Final = 100
"""Azure's stamps have seven digits after the point."""
NS_PER_US: Final = 1000
BLIS_COLUMNS: Final = (
    "request_id,client_id,tenant_id,slo_class,vllm_priority,session_id,round_index,prefix_group,prefix_length,streaming,"
    "input_tokens,output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,"
    "server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,"
    "error_message,finish_reason"
)


def azure(trace: Trace) -> str:
    """TIMESTAMP,ContextTokens,GeneratedTokens in the dialect of 2023."""
    start_s = int(ORIGIN.timestamp())
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for ns, prompt, output in _basic(trace):
        when = datetime.fromtimestamp(start_s + ns // NS_PER_S, tz=UTC)
        lines.append(f"{when:%Y-%m-%d %H:%M:%S}.{ns % NS_PER_S // AZURE_NS:07},{prompt},{output}")
    return _joined(lines)


def burstgpt(trace: Trace) -> str:
    """v1's columns, or v3's where the trace has sessions. Elapsed time is not known and stays empty."""
    sessions = (trace.session >= 0).any()
    more = "Session ID,Elapsed time," if sessions else ""
    lines = [f"Timestamp,{more}Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for (ns, prompt, output), session in zip(_basic(trace), trace.session.tolist(), strict=True):
        talk = f"session-{session}" if session >= 0 else ""
        kind = "Conversation log" if talk or not sessions else "API log"
        lines.append(
            f"{_seconds(ns)},{f'{talk},,' if sessions else ''}GPT-4,{prompt},{output},{prompt + output},{kind}"
        )
    return _joined(lines)


def vidur(trace: Trace) -> str:
    """arrived_at (s),num_prefill_tokens,num_decode_tokens."""
    rows = (f"{_seconds(ns)},{prompt},{output}" for ns, prompt, output in _basic(trace))
    return _joined(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows])


def mooncake(trace: Trace) -> str:
    """Whole milliseconds, rounded down; session_id and delay are AIPerf's and Dynamo's additions."""
    rows = []
    for i, (ns, prompt, output) in enumerate(_basic(trace)):
        delay_ns, session = int(trace.delay_ns[i]), int(trace.session[i])
        when = {"timestamp": ns // NS_PER_MS} if delay_ns < 0 else {"delay": delay_ns // NS_PER_MS}
        talk = {"session_id": f"session-{session}"} if session >= 0 else {}
        rows.append(json.dumps({**talk, **when, "input_length": prompt, "output_length": output, **_ids(trace, i)}))
    return _joined(rows)


def timed_trace(trace: Trace) -> str:
    """Seconds to the nanosecond, as vLLM's timed-trace takes them."""
    rows = []
    for i, (ns, prompt, output) in enumerate(_basic(trace)):
        rest = json.dumps({"input_length": prompt, "output_length": output, **_ids(trace, i)})
        rows.append(f'{{"timestamp": {_seconds(ns)}, {rest[1:]}')  # a float would round the stamp
    return _joined(rows)


def vllm_custom(trace: Trace) -> str:
    """Prompts of as many words as the row has tokens."""
    rows = (
        json.dumps({"prompt": " ".join(["the"] * prompt), "output_tokens": output})
        for _, prompt, output in _basic(trace)
    )
    return _joined(rows)


def blis(trace: Trace) -> str:
    """TraceV2's CSV, microseconds rounded down. A failed row has status error."""
    lines, rounds = [BLIS_COLUMNS], dict[int, int]()
    extra = zip(trace.session.tolist(), trace.priority.tolist(), strict=True)
    for i, ((ns, prompt, output), (session, priority)) in enumerate(zip(_basic(trace), extra, strict=True)):
        turn = rounds.get(session, 0) if session >= 0 else 0
        rounds[session] = turn + 1
        talk, at = f"session-{session}" if session >= 0 else "", ns // NS_PER_US
        lines.append(
            f"{i},,,,{priority},{talk},{turn},,0,true,{prompt},{output},{prompt},0,0,0,0,,0,0,{at},{at},0,0,0,"
            f"{'ok' if output else 'error'},,"
        )
    return _joined(lines)


def blis_header(trace: Trace) -> str:
    """TraceV2's YAML header."""
    return "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"


def _basic(trace: Trace) -> Iterator[tuple[int, int, int]]:
    return zip(
        trace.arrival_ns.tolist(), trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist(), strict=True
    )


def _ids(trace: Trace, row: int) -> dict[str, list[int]]:
    ids = trace.block_ids_of(row).tolist()
    return {"hash_ids": ids} if ids else {}


def _seconds(ns: int) -> str:
    """'12.5' or '3': every digit, none to spare."""
    whole, rest = divmod(ns, NS_PER_S)
    return f"{whole}.{rest:09}".rstrip("0").rstrip(".")


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
