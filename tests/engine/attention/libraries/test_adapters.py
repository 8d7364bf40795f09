"""The adapters against stand-ins that take what the libraries take: arguments, plans, views, no copy of the pool."""

import os
import sys
from pathlib import Path

import pytest
import torch

from engine.attention import AttentionInputError, AttentionLayer, KVLayout, LayerConfig, get_backend
from engine.attention.libraries import fa3
from engine.attention.libraries.flash_attention import FlashAttention3Impl
from engine.attention.libraries.flashinfer import pages_of
from engine.attention.reference_mla import ReferenceMLAImpl
from tests.engine.attention.libraries.shared_pool import SharedPool, bits

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tensors on the CPU need Triton's interpreter"
)
FAKES = Path(__file__).parent / "fakes"
MODULES = {
    "flashinfer": "flashinfer",
    "flash-attn-3": "flash_attn_interface",
    "flash-attn-2": "flash_attn",
    "flash-mla": "flash_mla",
}
KV = ["flashinfer", "flash-attn-3", "flash-attn-2"]
SIZES = {"flashinfer": 5, "flash-attn-3": 16, "flash-attn-2": 256}
LAYOUTS = [KVLayout.KV_FIRST, KVLayout.BLOCK_FIRST, KVLayout.INTERLEAVED]
KINDS = {
    "decode": [(1, 1), (1, 40), (1, 17)],
    "prefill": [(9, 9), (3, 3)],
    "mixed": [(1, 33), (1, 5), (6, 21), (4, 4)],
}
HEADS = (4, 2, 64)
BOUND = 2e-3


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    """The stand-ins, by name of the backend; gone again afterwards."""
    monkeypatch.syspath_prepend(str(FAKES))
    for variable in ("PAGELAB_FA3_LIBRARY", "PAGELAB_FLASH_MLA_LIBRARY"):
        monkeypatch.delenv(variable, raising=False)
    for module in MODULES.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
    found = {name: __import__(module) for name, module in MODULES.items()}
    yield found
    for module in MODULES.values():
        sys.modules.pop(module, None)


def pool_of(name, kind, layout=KVLayout.KV_FIRST, **more):
    options = {"block_size": SIZES[name], "heads": HEADS, "dtype": torch.float16, "device": "cpu"} | more
    return SharedPool(KINDS[kind], layout, **options)


def of(module, what):
    """The calls of a kind."""
    return [call for call in module.CALLS if call[0] == what]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KV)
def test_a_step_is_the_definition_on_a_pool_that_is_not_copied(name, kind, layout, libraries):
    pool = pool_of(name, kind, layout)
    layer, metadata = pool.impl(name), pool.metadata(name)
    out = layer.forward(pool.q, pool.k, pool.v, pool.cache, metadata)
    expected = pool.expected()
    assert pool.worst(out, expected) <= BOUND
    ((_, k, v),) = of(libraries[name], "run")
    for seen, view in zip((k, v), pool.views(), strict=True):
        assert seen.data_ptr() == view.data_ptr()
        assert seen.untyped_storage().data_ptr() == pool.cache.untyped_storage().data_ptr()
        assert (seen.shape, seen.stride()) == (view.shape, view.stride())
    kept = bits(pool.cache).clone()
    again = pool.impl("triton")
    again.write(pool.k, pool.v, pool.cache, pool.metadata("triton"))
    assert torch.equal(bits(pool.cache), kept)


@pytest.mark.parametrize("name", KV)
def test_what_is_planted_in_the_pool_is_read(name):
    pool = pool_of(name, "decode")
    layer, metadata = pool.impl(name), pool.metadata(name)
    before = layer.forward(pool.q, pool.k, pool.v, pool.cache, metadata)
    _, v = pool.views()
    v[pool.tables[1][0], 2] = pool.held[1][1][2] = 9.0
    after = layer.attend(pool.q, pool.cache, metadata)
    assert pool.worst(before, pool.expected()) > 0.1
    assert pool.worst(after, pool.expected()) <= BOUND


@pytest.mark.parametrize("window,soft_cap", [(3, 0.0), (7, 1.5), (0, 1.5)])
@pytest.mark.parametrize("kind", ["decode", "mixed"])
@pytest.mark.parametrize("name", KV)
def test_windows_and_soft_caps_reach_the_library(name, kind, window, soft_cap):
    """Entries of the table before all that a row sees are anything, and nobody looks where they point."""
    pool = pool_of(name, kind)
    metadata = pool.metadata(name)
    for row, (queries, length) in enumerate(pool.rows):
        gone = max(0, length - queries + 1 - window) // pool.block_size if window else 0
        metadata.block_table[row, :gone] = 2**30
    out = pool.impl(name, window=window, soft_cap=soft_cap).forward(pool.q, pool.k, pool.v, pool.cache, metadata)
    assert pool.worst(out, pool.expected(window, soft_cap)) <= BOUND


@pytest.mark.parametrize("name", KV)
def test_output_goes_where_it_is_wanted_also_into_the_query(name):
    pool = pool_of(name, "mixed")
    layer, metadata, expected = pool.impl(name), pool.metadata(name), pool.expected()
    gaps = torch.full((len(pool.q), 2 * HEADS[0], HEADS[2]), torch.nan, dtype=pool.dtype)[:, ::2]
    for out in (torch.full_like(pool.q, torch.nan), gaps, pool.q):
        query = pool.q if out is pool.q else pool.q.clone()
        assert layer.forward(query, pool.k, pool.v, pool.cache, metadata, out) is out
        assert pool.worst(out, expected) <= BOUND


@pytest.mark.parametrize("name", KV)
def test_padded_rows_behind_decodes_give_zero(name):
    pool = pool_of(name, "decode")
    metadata = pool.metadata(name, num_padded_seqs=2)
    filler = torch.zeros(2, *HEADS[::2], dtype=pool.dtype)
    q = torch.cat((pool.q, filler))
    pool.impl(name).write(pool.k, pool.v, pool.cache, pool.metadata(name))
    out = pool.impl(name).attend(q, pool.cache, metadata, torch.full_like(q, 7.0))
    assert pool.worst(out[:-2], pool.expected()) <= BOUND
    assert not out[-2:].any()


def test_a_step_without_tokens_asks_the_library_for_nothing(libraries):
    pool = pool_of("flashinfer", "decode")
    padded = get_backend("flashinfer").get_builder_cls()(5).build([], [], [], num_padded_seqs=3)
    out = pool.impl("flashinfer").attend(torch.ones(3, *HEADS[::2]).half(), pool.cache, padded)
    assert not out.any()
    assert libraries["flashinfer"].CALLS == []


def test_flashinfer_plans_a_step_once_for_all_layers_and_again_for_the_next(libraries):
    pool, module = pool_of("flashinfer", "decode"), libraries["flashinfer"]
    layers = [pool.impl("flashinfer") for _ in range(3)]
    first, second = pool.metadata("flashinfer"), pool.metadata("flashinfer")
    layers[0].write(pool.k, pool.v, pool.cache, first)
    for step in (first, second):
        for layer in layers:
            assert pool.worst(layer.attend(pool.q, pool.cache, step), pool.expected()) <= BOUND
    assert len(of(module, "plan")) == 2
    assert len(of(module, "run")) == 6
    layers[1].attend(pool.q, pool.cache, first)  # the second step's plan has taken its place
    assert len(of(module, "plan")) == 3


def test_flashinfer_refuses_to_plan_while_a_graph_is_captured(monkeypatch):
    pool = pool_of("flashinfer", "decode")
    layer, planned = pool.impl("flashinfer"), pool.metadata("flashinfer")
    layer.forward(pool.q, pool.k, pool.v, pool.cache, planned)
    monkeypatch.setattr("engine.attention.libraries.flashinfer.capturing", lambda tensor: True)
    layer.attend(pool.q, pool.cache, planned)
    with pytest.raises(AttentionInputError, match="flashinfer: expected a step that was planned before the capture"):
        layer.attend(pool.q, pool.cache, pool.metadata("flashinfer"))


def test_flashinfers_pages_are_the_tables_blocks():
    table = torch.tensor([[4, 9, 1], [7, 2**30, -7], [2**30, 0, 0]], dtype=torch.int32)
    pages = pages_of(table, torch.tensor([9, 4, 0], dtype=torch.int32), 4)
    assert pages.indptr.tolist() == [0, 3, 4, 4]
    assert pages.indices.tolist() == [4, 9, 1, 7]
    assert pages.last_page_len.tolist() == [1, 4, 0]


def test_vllms_extension_is_called_as_its_schema_has_it(monkeypatch):
    """The operators with the schemas that vLLM 0.33 registers, computed by the stand-in."""
    calls = []
    library = torch.library.Library("pagelab_test_fa3", "DEF")
    library.define(
        "fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor(a!)? out, "
        "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, "
        "int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, "
        "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, "
        "Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left, int window_size_right, "
        "float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, "
        "int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"
    )
    library.define(
        "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
        "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, "
        "Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, "
        "int max_seqlen_k_new, bool is_causal, int window_size_left, int window_size_right, bool has_softcap, "
        "int num_splits, bool? pack_gqa, int sm_margin) -> Tensor"
    )

    def metadata(*given):
        calls.append(("plan", given))
        return torch.tensor([given[0]])

    def fwd(q, k, v, *given):
        from tests.engine.attention.libraries.fakes.by_table import attended

        out, starts, lens, table, scale = given[3], given[4], given[8], given[11], given[20]
        assert given[26].tolist() == [len(lens)]  # its scheduler metadata
        calls.append(("run", k, v))
        out.copy_(attended(q, k, v, starts, lens, table, scale, given[22:24], given[24]))
        return [torch.zeros(1)]

    library.impl("get_scheduler_metadata", metadata, "CompositeExplicitAutograd")
    library.impl("fwd", fwd, "CompositeExplicitAutograd")

    class Ops:
        """The output is the tensor that was given, as the extension returns it."""

        get_scheduler_metadata = torch.ops.pagelab_test_fa3.get_scheduler_metadata

        @staticmethod
        def fwd(*given):
            torch.ops.pagelab_test_fa3.fwd(*given)
            return [given[6]]

    monkeypatch.setattr(FlashAttention3Impl, "load", staticmethod(lambda: fa3.Extension(Ops)))
    pool = pool_of("flash-attn-3", "mixed", KVLayout.BLOCK_FIRST)
    layers = [pool.impl("flash-attn-3", soft_cap=2.0) for _ in range(2)]
    metadata_of_step = pool.metadata("flash-attn-3")
    layers[0].write(pool.k, pool.v, pool.cache, metadata_of_step)
    for layer in layers:
        out = layer.attend(pool.q, pool.cache, metadata_of_step)
        assert pool.worst(out, pool.expected(soft_cap=2.0)) <= BOUND
    plans = [given for what, *given in calls if what == "plan"]
    assert len(plans) == 1
    assert plans[0][0][:8] == (4, 6, 33, 4, 2, 64, 64, torch.float16)
    assert plans[0][0][14] == 16
    assert plans[0][0][19] is True


def test_flash_mla_decodes_over_the_latents_where_they_lie(libraries):
    config = LayerConfig(4, 1, 576, 0.1, kv_lora_rank=512)
    backend, rows = get_backend("flash-mla"), [(1, 65), (1, 3), (5, 70)]
    cache = torch.randn(7, 64, 576).bfloat16()
    step = backend.get_builder_cls()(64).build([q for q, _ in rows], [n for _, n in rows], [[3, 5], [1], [6, 2]])
    q, c, rope = (torch.randn(7, *shape).bfloat16() for shape in ((4, 576), (1, 512), (1, 64)))
    expected_cache = cache.clone()
    layer = AttentionLayer(backend, config, cache)
    out = layer(q, c, rope, step)
    wanted = ReferenceMLAImpl(config, KVLayout.LATENT).forward(q, c, rope, expected_cache, step)
    assert torch.equal(cache, expected_cache)
    assert float((out.float() - wanted.float()).norm() / wanted.float().norm()) <= 5e-3
    ((_, k, _),) = of(libraries["flash-mla"], "run")
    assert k.data_ptr() == cache.data_ptr()
    assert k.shape == (7, 64, 1, 576)


@pytest.mark.parametrize("name", MODULES)
def test_an_absent_library_is_one_clear_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    why = get_backend(name).unavailable_because()
    assert "\n" not in why
    assert "install" in why
    assert why.endswith("; no CUDA device") or torch.cuda.is_available()
    latent = name == "flash-mla"
    config = LayerConfig(4, 1 if latent else 2, 576 if latent else 64, 0.1, kv_lora_rank=512 if latent else 0)
    with pytest.raises(AttentionInputError, match="install") as refused:
        get_backend(name).get_impl_cls()(config, get_backend(name).pick_layout())
    assert "\n" not in str(refused.value)


def test_a_library_that_breaks_on_import_is_one_clear_line_too(monkeypatch, tmp_path):
    (tmp_path / "flashinfer.py").write_text("raise ImportError('libcudart.so.13:\\n cannot open')")
    monkeypatch.delitem(sys.modules, "flashinfer")
    monkeypatch.syspath_prepend(str(tmp_path))
    why = get_backend("flashinfer").unavailable_because()
    assert why.startswith("flashinfer is installed and cannot be imported: libcudart.so.13: cannot open")


@pytest.mark.parametrize("name,variable", [("flash-attn-3", fa3.VARIABLE), ("flash-mla", "PAGELAB_FLASH_MLA_LIBRARY")])
def test_a_library_that_is_named_is_taken_or_said_to_be_bad(name, variable, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, str(tmp_path / "none.so"))
    assert "none.so: no such library" in get_backend(name).unavailable_because()
    (tmp_path / "none.so").write_text("no library")
    why = get_backend(name).unavailable_because()
    assert "none.so cannot be loaded" in why
    assert "\n" not in why


def test_the_extension_inside_an_installed_vllm_is_found_without_importing_it(monkeypatch, tmp_path):
    folder = tmp_path / "vllm" / "vllm_flash_attn"
    folder.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "_vllm_fa3_C.abi3.so").write_text("no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    assert "_vllm_fa3_C.abi3.so cannot be loaded" in get_backend("flash-attn-3").unavailable_because()
