"""Stands in for FlashInfer: takes what its wrappers take, refuses what they refuse, computes from the definition."""

from itertools import pairwise

import torch

from tests.engine.attention.kernels.pools import causal

CALLS = []
"""(what, K, V or the arguments of a plan) of each call, in order."""


class _Wrapper:
    def _keep(self, indptr, indices, last_page_len, sizes, options):
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert indptr.device.type == last_page_len.device.type == "cpu"
        assert indptr[0] == 0
        assert int(indptr[-1]) == len(indices)
        assert set(options) == {"sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type"}
        self.pages, self.sizes, self.options = (
            (indptr.tolist(), indices.tolist(), last_page_len.tolist()),
            sizes,
            options,
        )
        CALLS.append(("plan", sizes, options))

    def run(self, q, paged_kv_cache, *, out=None):
        k, v = paged_kv_cache
        num_heads, num_kv_heads, head_size, page_size = self.sizes
        assert k.shape == v.shape
        assert k.stride() == v.stride()  # one offset serves both
        assert k.shape[1:] == (page_size, num_kv_heads, head_size)
        assert q.shape == (self.starts[-1], num_heads, head_size)
        assert q.dtype == k.dtype == self.options["q_data_type"] == self.options["kv_data_type"]
        assert out.shape == q.shape
        assert out.is_contiguous()
        CALLS.append(("run", k, v))
        indptr, indices, last = self.pages
        window, cap = self.options["window_left"] + 1, self.options["logits_soft_cap"]
        for row, (first, stop) in enumerate(pairwise(self.starts)):
            pages = indices[indptr[row] : indptr[row + 1]]
            length = max(len(pages) - 1, 0) * page_size + last[row]
            keys, values = (x[pages].flatten(0, 1)[:length].float() for x in (k, v))
            rows = q[first:stop].float()
            out[first:stop] = causal(rows, keys, values, length - len(rows), self.options["sm_scale"], window, cap)
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, workspace, kv_layout="NHD", *, use_tensor_cores=False, backend="auto"):
        assert workspace.dtype == torch.uint8
        assert (kv_layout, use_tensor_cores, backend) == ("NHD", True, "fa2")

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **options):
        self.starts = list(range(len(last_page_len) + 1))
        self._keep(indptr, indices, last_page_len, (num_qo_heads, num_kv_heads, head_dim, page_size), options)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, workspace, kv_layout="NHD", *, backend="auto"):
        assert workspace.dtype == torch.uint8
        assert (kv_layout, backend) == ("NHD", "fa2")

    def plan(
        self, qo_indptr, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, causal,
        **options,
    ):  # fmt: skip
        assert causal
        assert qo_indptr.device.type == "cpu"
        self.starts = qo_indptr.tolist()
        self._keep(indptr, indices, last_page_len, (num_qo_heads, num_kv_heads, head_dim, page_size), options)
