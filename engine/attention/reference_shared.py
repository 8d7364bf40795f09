"""Decode attention over shared prefixes in plain torch: the specification of the kernels that do the same.

A group's shared tokens are attended to once, by all queries of its members together; each row then attends to its own
tokens, and the two parts are merged by their log-sum-exps (`engine.attention.merge`). The result is that of
`paged_attention`. Unlike a kernel it looks at groups, lengths and tables, and refuses impossible ones.
"""

from __future__ import annotations

import torch

from engine.attention.checks import AttentionInputError, check_index, check_same_device, check_scale
from engine.attention.kv_scales import KVScales
from engine.attention.merge import NEVER, merge_outputs
from engine.attention.reference import Row, attend, check_paged, gather_kv
from engine.attention.shared_prefix import SharedPrefixes


@torch.no_grad()
def shared_prefix_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    shared: SharedPrefixes,
    *,
    scale: float,
    soft_cap: float = 0.0,
    scales: KVScales | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [S, H, DV] in Q's type and lse [S, H] of one query token a row, q [S, H, D], the last of its sequence.

    A row may have no tokens of its own; of length 0 it gives 0 and -inf. No sliding window. AttentionInputError,
    besides what `paged_attention` refuses, for members that are no permutation, groups that overlap, and shared tokens
    that a member does not have or that lie in other blocks.
    """
    check_scale(scale, 0, soft_cap)
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    rows = check_paged(q, k_cache, v_cache, block_table, starts, seq_lens, out, scales=scales)
    groups = groups_of(shared, rows, k_cache.shape[1])
    dtype = torch.promote_types(q.dtype, torch.float32)
    part = torch.zeros(*q.shape[:2], v_cache.shape[3], dtype=dtype, device=q.device)
    lse = torch.full(q.shape[:2], NEVER, dtype=dtype, device=q.device)
    own, own_lse, first_own = part.clone(), lse.clone(), [0] * len(rows)

    for members, tokens in groups:
        k, v = gather_kv((k_cache, v_cache), rows[members[0]].table, 0, tokens, scales)
        last = torch.full((len(members),), tokens - 1, device=q.device)
        part[members], lse[members] = attend(q[members], k, v, last, 0, scale=scale, soft_cap=soft_cap)
        for member in members:
            first_own[member] = tokens
    for index, (row, first) in enumerate(zip(rows, first_own, strict=True)):
        if row.length > first:
            k, v = gather_kv((k_cache, v_cache), row.table, first, row.length, scales)
            position = torch.tensor([row.length - 1], device=q.device)
            own[index], own_lse[index] = (
                x[0] for x in attend(q[row.tokens], k, v, position, first, scale=scale, soft_cap=soft_cap)
            )
    result, lse = merge_outputs(part, lse, own, own_lse)
    result = result.to(q.dtype)
    return (result if out is None else out.copy_(result)), lse


def groups_of(shared: SharedPrefixes, rows: list[Row], block_size: int) -> list[tuple[list[int], int]]:
    """(rows, tokens) of each group that shares something; AttentionInputError as `shared_prefix_attention`."""
    check_index("shared members", shared.members, (len(rows),), torch.int32)
    members, found, end = shared.members.tolist(), [], 0
    if rows:
        check_same_device(block_table=rows[0].table, members=shared.members)
    if sorted(members) != list(range(len(rows))):
        raise AttentionInputError(f"shared members: expected each of the rows 0 to {len(rows) - 1} once, got {members}")
    for first, count, tokens in sorted(shared.groups.tolist()):
        if not count or not tokens:
            continue
        if first < end or count < 0 or first + count > len(rows) or tokens < 0 or tokens % block_size:
            raise AttentionInputError(
                f"shared groups: expected places side by side among {len(rows)} members, and whole blocks of "
                f"{block_size}, got {(first, count, tokens)}"
            )
        end = first + count
        group = members[first:end]
        _check_alike(group, tokens, rows, block_size)
        found.append((group, tokens))
    return found


def _check_alike(group: list[int], tokens: int, rows: list[Row], block_size: int) -> None:
    blocks = rows[group[0]].table[: tokens // block_size]
    for row in group:
        if rows[row].length < tokens or not torch.equal(rows[row].table[: tokens // block_size], blocks):
            raise AttentionInputError(
                f"shared groups: expected the {tokens} shared tokens in the first blocks of row {row}, as of row "
                f"{group[0]}, got a length of {rows[row].length} and blocks "
                f"{rows[row].table[: tokens // block_size].tolist()}"
            )
