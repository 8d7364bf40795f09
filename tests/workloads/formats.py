"""Random files of every format that is read, as text, with what reading them needs."""

import json
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

TOKENS = st.integers(0, 3000) | st.sampled_from([1, 15, 16, 17, 511, 512, 513])
STAMPS_NS = st.integers(0, 3 * 10**9) | st.integers(0, 10**15)


@st.composite
def lengths(draw, most=8):
    """(prompt, output) pairs: failures too, never output without a prompt."""
    pairs = draw(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=most))
    return [(prompt, output if prompt else 0) for prompt, output in pairs]


def _seconds(ns, digits):
    whole, rest = divmod(ns, 10**9)
    return f"{whole}.{rest:09}"[: len(str(whole)) + 1 + digits] if digits else str(whole)


@st.composite
def azure(draw):
    dialect = draw(st.sampled_from(["2023", "2024", "2025"]))
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    if dialect == "2025":
        lines = ["TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"]
    for prompt, output in draw(lengths()):
        when = datetime(2030, 5, 12, tzinfo=UTC) + timedelta(microseconds=draw(STAMPS_NS) // 1000)
        stamps = {
            "2023": f"{when:%Y-%m-%d %H:%M:%S.%f}0",
            "2024": str(when),
            "2025": f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z,3",
        }
        lines.append(f"{stamps[dialect]},{prompt},{output}")
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines), {}


@st.composite
def burstgpt(draw):
    digits = draw(st.sampled_from([0, 1, 9]))
    sessions = draw(st.booleans())
    lines = [f"Timestamp,{'Session ID,Elapsed time,' if sessions else ''}Model,Request tokens,Response tokens,Log Type"]
    for prompt, output in draw(lengths()):
        talk = f"{draw(st.sampled_from(['', 'a-1', 'b-2', 'c']))},4," if sessions else ""
        lines.append(f"{_seconds(draw(STAMPS_NS), digits)},{talk}GPT-4,{prompt},{output},API log")
    return "\n".join([*lines, ""]), {}


@st.composite
def vidur(draw):
    name = draw(st.sampled_from(["arrived_at", "arrival_time"]))
    lines = [f"{name},num_prefill_tokens,num_decode_tokens,pd_ratio"]
    for prompt, output in draw(lengths()):
        ns = draw(STAMPS_NS)
        stamp = draw(st.sampled_from([_seconds(ns, 9), _seconds(ns, 2), repr(ns / 1e9), f"{ns / 1e9:.17f}"]))
        lines.append(f"{stamp},{prompt},{output},1.5")
    return "\n".join([*lines, ""]), {}


@st.composite
def length_list(draw):
    pair = draw(st.sampled_from(["input_len,output_len", "num_prefill_tokens,num_decode_tokens"]))
    decimal = draw(st.booleans())
    rows = [f"{i},{p}.0,{o}" if decimal else f"{i},{p},{o}" for i, (p, o) in enumerate(draw(lengths()))]
    return "\n".join([f"index,{pair}", *rows]), {}


def _ids(draw, prompt, size, chained):
    need = -(-prompt // size)
    if not chained:
        return draw(st.lists(st.integers(0, 40), min_size=need, max_size=need))
    first = draw(st.sampled_from([0, 100_000]))
    last = [] if prompt % size == 0 else [10**6 + prompt * 10 + (first > 0)]
    return [first + i for i in range(prompt // size)] + last


@st.composite
def mooncake(draw):
    size, unit = draw(st.sampled_from([(512, 10**6), (64, 10**6)]))
    has_ids, talks, digits = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    rows, begun = [], set()
    for prompt, output in draw(lengths()):
        stamp = draw(STAMPS_NS) // unit
        row = {"timestamp": stamp + 0.25 if digits else stamp, "input_length": prompt, "output_length": output}
        talk = draw(st.sampled_from([None, "a", "b"])) if talks else None
        if talk:
            row["session_id"] = talk
            if talk in begun and draw(st.booleans()):
                row["delay"] = row.pop("timestamp")
            elif talk in begun:
                continue  # a later turn of the talk must not come earlier
            begun |= {talk} if output else set()
        if has_ids and draw(st.booleans()):
            row["hash_ids"] = _ids(draw, prompt, size, chained=True)
        rows.append(json.dumps(row))
    return "\n".join([*rows, ""]) if rows else one_row(), {"block_size": size}


def one_row():
    """One Mooncake row, where all drawn ones fell out."""
    return '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'


@st.composite
def timed_trace(draw):
    rows = []
    for prompt, output in draw(lengths()):
        ids = {"hash_ids": _ids(draw, prompt, 16, chained=True)} if draw(st.booleans()) else {}
        row = json.dumps({"input_length": prompt, "output_length": output, **ids})
        rows.append(f'{{"timestamp": {_seconds(draw(STAMPS_NS), draw(st.sampled_from([0, 3, 9])))}, {row[1:]}')
    return "\n".join(rows), {"format": "timed-trace"}


@st.composite
def bailian(draw):
    rows, at = [], 0
    for chat, (prompt, output) in enumerate(draw(lengths()), start=1):
        at += draw(st.integers(0, 5000))
        row = {
            "chat_id": chat,
            "parent_chat_id": draw(st.sampled_from([-1, 99, *range(1, chat)])),
            "timestamp": at / 1000,
            "input_length": prompt,
            "output_length": output,
            "type": "text",
            "turn": 1,
            "hash_ids": _ids(draw, prompt, 16, chained=False),
        }
        rows.append(json.dumps(row))
    return "\n".join(rows), {}


@st.composite
def blis(draw):
    lines = ["request_id,vllm_priority,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens"]
    lines[0] += ",server_input_tokens,arrival_time_us,status"
    rounds, at = {}, 0
    for i, (prompt, output) in enumerate(draw(lengths())):
        at += draw(st.integers(0, 10**7))
        talk, group = draw(st.sampled_from(["", "a", "b"])), draw(st.sampled_from(["", "g"]))
        turn = rounds.get(talk, 0) if talk else 0
        rounds[talk] = turn + 1
        status = draw(st.sampled_from(["ok", "ok", "", "error"]))
        server = draw(st.sampled_from([0, prompt + 7]))
        lines.append(f"{i},{i % 3},{talk},{turn},{group},20,{prompt},{output},{server},{at},{status}")
    return "\n".join(lines), {}


WORDS = st.lists(st.sampled_from(["a", "tree", "of", "pages"]), max_size=6).map(" ".join)


@st.composite
def sharegpt(draw):
    turn = st.fixed_dictionaries({"from": st.sampled_from(["human", "gpt", "system", "bing"]), "value": WORDS})
    talk = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "yes"}]
    talks = [talk, *draw(st.lists(st.lists(turn, max_size=4), max_size=6))]
    return json.dumps([{"id": f"x{i}", "conversations": one} for i, one in enumerate(talks)]), {
        "recipe": "first-human-pair",
        "tokenizer": "words",
    }


@st.composite
def vllm_custom(draw):
    rows = [json.dumps({"prompt": "of pages", "output_tokens": 3})]
    for words, output in draw(st.lists(st.tuples(WORDS, st.integers(1, 90)), max_size=6)):
        rows.append(json.dumps({"prompt": words or "a", "output_tokens": output}))
    return "\n".join(rows), {"tokenizer": "words"}


@st.composite
def vllm_bench(draw):
    pairs, origin = draw(lengths()), draw(st.integers(0, 10**6))
    stamps = [origin + draw(STAMPS_NS) / 1e9 for _ in pairs]
    result = {"date": "x", "model_id": "m", "duration": 9.5, "completed": 1, "total_input_tokens": 3}
    result |= {"total_output_tokens": 4, "request_throughput": 0.5, "start_times": stamps}
    result |= {"input_lens": [prompt for prompt, _ in pairs], "output_lens": [output for _, output in pairs]}
    return json.dumps(result, indent=draw(st.sampled_from([None, 2]))), {}


FILES = {
    "azure": azure(),
    "bailian": bailian(),
    "blis": blis(),
    "burstgpt": burstgpt(),
    "lengths": length_list(),
    "mooncake": mooncake(),
    "sharegpt": sharegpt(),
    "timed-trace": timed_trace(),
    "vidur": vidur(),
    "vllm-bench": vllm_bench(),
    "vllm-custom": vllm_custom(),
}
