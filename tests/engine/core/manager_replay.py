"""Replays a recorded trace of vLLM's cache manager on a paged allocator, in the recording's own words."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from engine.core.allocator import Grant, Refusal
from engine.core.content import TokenContent
from engine.core.paged import PagedAllocator
from engine.core.request import Request


def _paged(config: dict[str, Any]) -> PagedAllocator:
    return PagedAllocator(
        config["usable_blocks"],
        config["block_size"],
        max_model_len=config["max_model_len"],
        enable_caching=config["enable_caching"],
        watermark=config["watermark"],
        record_events=True,
    )


class ManagerReplay:
    """A paged allocator driven by the operations of a trace; results and states in the recorded form."""

    def __init__(self, config: dict[str, Any], make: Callable[[dict[str, Any]], PagedAllocator] = _paged) -> None:
        self.config = config
        self.allocator = make(config)
        self.requests: dict[str, Request] = {}
        self.live: dict[str, Request] = {}
        self.named: dict[Hashable, list[Any]] = {}
        """Content by the first request of the trace that has it: [request, block index]."""

    def play(self, operation: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Result and state after one recorded operation."""
        events = self.allocator.pool.events
        assert events is not None
        events.clear()
        result = getattr(self, "_" + operation["op"])(operation)
        result["evicted"] = [self.named[event.key] for event in events if event.kind == "removed"]
        result["num_stored"] = sum(event.kind == "stored" for event in events)
        self.allocator.check()
        return result, self.state()

    # operations -----------------------------------------------------------------------------------

    def _new(self, op: dict[str, Any]) -> dict[str, Any]:
        content = TokenContent(list(op["prompt"]), salt=op.get("salt"), lora=op.get("lora"))
        request = Request(
            op["req"],
            len(op["prompt"]),
            self.config["max_model_len"],
            content=content,
            skips_cache_read=bool(op.get("skip_read")),
        )
        self.requests[op["req"]] = request
        return {"num_full_block_hashes": self._name_blocks(request)}

    def _name_blocks(self, request: Request) -> int:
        size = self.config["block_size"]
        num_full = request.num_tokens // size
        for index, key in enumerate(request.content.keys(0, num_full, size)):
            self.named.setdefault(key, [request.request_id, index])
        return num_full

    def _lookup(self, op: dict[str, Any]) -> dict[str, Any]:
        hit = self.allocator.lookup(self.requests[op["req"]])
        return {"hit_tokens": hit.num_tokens, "exact_hit_blocks": list(hit.block_ids)}

    def _admit(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.requests[op["req"]]
        hit = self.allocator.lookup(request)
        count = self._count(request.num_tokens - hit.num_tokens, op)
        whole = request.num_tokens if op.get("must_fit", True) else 0
        total, others = hit.num_tokens + count, bool(self.live)
        answer = self.allocator.admit(request, total, hit, whole=whole, others_running=others)
        if isinstance(answer, Refusal):
            return {"hit_tokens": hit.num_tokens, "ok": False}
        self.live[op["req"]] = request
        return {"hit_tokens": hit.num_tokens, **self._granted(request, total, count, answer)}

    def _step(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.requests[op["req"]]
        count = self._count(request.num_tokens - request.computed, op)
        total = request.computed + count
        answer = self.allocator.extend((request,), (total,), num_lookahead=op.get("lookahead", 0))
        if isinstance(answer, Refusal):
            return {"ok": False, "num_wanted": count}
        result = self._granted(request, total, count, answer)
        if request.computed == request.known:
            self._append(request, op)
        return {**result, "num_tokens": request.num_tokens}

    def _count(self, rest: int, op: dict[str, Any]) -> int:
        return rest if op.get("chunk") is None else min(op["chunk"], rest)

    def _granted(self, request: Request, total: int, count: int, grant: Grant) -> dict[str, Any]:
        request.computed = total
        new_blocks = list(grant.new_blocks[0])
        return {
            "ok": True,
            "num_scheduled": count,
            "num_computed": total,
            "num_new_blocks": len(new_blocks),
            "exact_new_blocks": new_blocks,
        }

    def _sample(self, op: dict[str, Any]) -> dict[str, Any]:
        self._append(self.requests[op["req"]], op)
        return {"num_tokens": self.requests[op["req"]].num_tokens}

    def _append(self, request: Request, op: dict[str, Any]) -> None:
        assert isinstance(request.content, TokenContent)
        request.content.tokens.extend(op.get("sampled") or ())
        request.known = len(request.content.tokens)
        self._name_blocks(request)

    def _free(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.live.pop(op["req"], None)
        if request is not None:  # vLLM frees what was never allocated without complaint; ours raises
            self.allocator.free(request)
        return {}

    def _preempt(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.live.pop(op["req"])
        self.allocator.free(request)
        request.computed = 0
        return {"num_tokens": request.num_tokens}

    def _reset_prefix_cache(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"ok": self.allocator.reset_prefix_cache()}

    # state ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        allocator, pool, stats = self.allocator, self.allocator.pool, self.allocator.stats()
        tables = {name: list(allocator.block_table(request)) for name, request in self.live.items()}
        renamed: dict[int, int] = {}
        for table in tables.values():
            for block_id in table:
                renamed.setdefault(block_id, len(renamed))
        counts = filter(None, pool.ref_cnts())
        return {
            "free_blocks": stats.num_free,
            "usage": round(stats.num_referenced / allocator.capacity_blocks, 9),
            "refcounts_desc": sorted(counts, reverse=True),
            "cached_keys": pool.num_cached_keys(),
            "cached_blocks": sum(pool.is_cached(b) for b in range(allocator.num_blocks)),
            "cached_free_blocks": stats.num_cached_free,
            "tables_canonical": {name: [renamed[b] for b in table] for name, table in tables.items()},
            "evicted_total": stats.num_evictions,
            "stored_total": pool.num_stored,
            "exact": {"tables": tables, "free_queue": pool.free_queue()},
        }
