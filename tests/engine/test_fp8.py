"""The engine over an FP8 cache: logits within a stated bound, twice the tokens, and memory managed as ever."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")

from engine.attention import AttentionLayer, LayerConfig, allocate_kv_caches  # noqa: E402
from engine.attention.checks import FP8, AttentionInputError  # noqa: E402
from engine.attention.kv_scales import FITTED_MAX, KVScales  # noqa: E402
from engine.attention.registry import BACKENDS  # noqa: E402
from engine.core.capacity import default_capacity  # noqa: E402
from engine.core.catalogue import lookup  # noqa: E402
from engine.core.gpus import lookup_gpu  # noqa: E402
from engine.core.model_shape import read_model_shape  # noqa: E402
from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.worker.budget import EngineError  # noqa: E402
from engine.worker.engine import Engine, EngineConfig  # noqa: E402
from engine.worker.kv_storage import storage_of  # noqa: E402
from tests.engine import fp8_accuracy  # noqa: E402
from tests.engine.model import smollm2  # noqa: E402
from tests.engine.worker.tiny import CONFIG  # noqa: E402

ERROR, AGREEMENT = 0.1, 0.93
"""The bound: relative error of centred logits, and positions with the same likeliest token."""
GREEDY = SamplingParams(max_tokens=14, temperature=0, ignore_eos=True)
TEXT = [7, 3, 90, 41, 2, 55, 8, 13, 21, 34, 1, 60, 17, 71, 29, 5, 66, 80, 12, 44]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def engine_of(folder, **options):
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    return Engine(EngineConfig(str(folder), weights_seed=3, **limits, **options))


@pytest.mark.parametrize("scales", fp8_accuracy.SCALES)
@pytest.mark.parametrize("layout", ["kv-first", "block-first", "interleaved"])
def test_logits_of_a_tiny_model_stay_within_the_bound(folder, scales, layout):
    found = fp8_accuracy.accuracy(engine_of(folder, layout=layout), [TEXT, TEXT[::-1], [*TEXT[5:], 1, 2]], scales)

    assert 0 < found.error < ERROR
    assert found.divergence < 1e-2


@smollm2.needed
@pytest.mark.xdist_group("smollm2")
def test_logits_and_choices_of_a_real_model_stay_within_the_bound(monkeypatch):
    monkeypatch.setattr(fp8_accuracy, "TEXTS", (fp8_accuracy.PROGRAM, fp8_accuracy.BIOLOGY))
    for found in fp8_accuracy.smollm2_accuracy():
        assert 0 < found.error < ERROR, found
        assert found.agreement > AGREEMENT, found


def test_a_block_takes_half_of_what_sixteen_bits_take_and_twice_as_many_fit(folder):
    limit = {"dtype": "bfloat16", "kv_limit_bytes": 1 << 20}
    wide, fp8 = (engine_of(folder, kv_cache_dtype=name, **limit) for name in ("auto", "fp8"))
    shape = read_model_shape(CONFIG, "tiny")

    assert wide.block_bytes(16) == shape.kv_spec("bf16").block_bytes(16)
    assert fp8.block_bytes(16) == shape.kv_spec("fp8").block_bytes(16) == wide.block_bytes(16) // 2
    assert fp8.budget(16).num_blocks == 2 * wide.budget(16).num_blocks == (1 << 20) // fp8.block_bytes(16)
    assert fp8.executor_in_use is None


def test_the_capacity_rule_gives_twice_the_tokens_of_the_same_budget():
    shape, gpu = lookup("llama-3.1-8b"), lookup_gpu("h200")
    wide, fp8 = (default_capacity(shape, gpu, kv_dtype=name) for name in ("bf16", "fp8"))

    assert fp8.budget_bytes == wide.budget_bytes
    assert fp8.num_blocks in (2 * wide.num_blocks, 2 * wide.num_blocks + 1)


def test_the_cache_is_fp8_and_the_record_says_so(folder):
    llm = LLM(engine_of(folder, kv_cache_dtype="float8_e4m3fn", kv_scales="per-head"), num_blocks=20)
    engine = llm.engine

    assert {cache.dtype for cache in llm.executor.kv.caches} == {FP8}
    assert engine.provenance["kv_cache_dtype"] == "fp8_e4m3"
    assert engine.provenance["kv_scales_fitted"] is False
    before = [scales.k.data_ptr() for scales in engine.storage.scales]
    llm.generate(TEXT, GREEDY)
    assert engine.provenance["kv_scales"] == "per-head"
    assert engine.provenance["kv_scales_fitted"] is True
    assert before == [scales.k.data_ptr() for scales in engine.storage.scales], "graphs hold these addresses"
    fitted = engine.storage.to_dict()
    llm.generate([1, 2, 3], GREEDY)
    assert engine.storage.to_dict() == fitted, "once"


def test_fitted_scales_store_the_largest_number_seen_as_fitted_max(folder):
    wide, fp8 = engine_of(folder), engine_of(folder, kv_cache_dtype="fp8", kv_scales="per-tensor")
    fp8.storage.fit(wide, [TEXT])
    (first, *_), (_, *others) = fp8.storage.to_dict()["k"], fp8.storage.to_dict()["v"]
    assert len(set(first)) == 1, "per tensor"
    assert others
    llm = LLM(wide, num_blocks=20)
    llm.generate(TEXT, SamplingParams(max_tokens=1, temperature=0))
    k, v = llm.executor.kv.views(0)
    assert float(k.abs().max()) / FITTED_MAX == pytest.approx(first[0], rel=1e-5)
    assert float(v.abs().max()) / FITTED_MAX == pytest.approx(fp8.storage.to_dict()["v"][0][0], rel=1e-5)


def served(folder, prompts, *, n=1, params=GREEDY, **options):
    """Tokens of all completions, and what became of memory."""
    llm = LLM(engine_of(folder, kv_cache_dtype="fp8", kv_scales="unit"), **options)
    answers = llm.generate(prompts, params, n=n)
    return [one.token_ids for answer in answers for one in answer.outputs], llm


def test_tokens_do_not_depend_on_how_memory_is_managed(folder):
    prompts = [TEXT, [*TEXT[:18], 9, 9], TEXT[:7], [5]]
    right, _ = served(folder, prompts, num_blocks=64, block_size=4, enable_prefix_caching=False)

    tight = {"num_blocks": 18, "block_size": 4}
    tokens, llm = served(folder, prompts, **tight, enable_prefix_caching=False)
    assert tokens == right
    assert llm.num_preemptions > 0
    tokens, llm = served(folder, prompts, **tight, preemption="swap", host_blocks=40)
    assert tokens == right
    assert llm.memory_use.swapped_out_blocks > 0
    assert llm.executor.kv.host.blocks.dtype == torch.uint8
    for allocator in ("orca-max", "orca-pow2"):
        assert served(folder, prompts, num_blocks=64, block_size=4, allocator=allocator)[0] == right
    assert served(folder, prompts, num_blocks=64, block_size=16, enable_chunked_prefill=False)[0] == right

    llm.generate(prompts, GREEDY)
    again = llm.generate(prompts, GREEDY)
    assert [answer.outputs[0].token_ids for answer in again] == right
    assert llm.memory_use.hit_tokens > 0, "found in the prefix cache"


def test_samples_that_share_a_block_copy_it_before_they_write(folder):
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=4, ignore_eos=True)
    forked, llm = served(folder, [TEXT[:18]], n=3, params=params, num_blocks=40, block_size=8)
    assert llm.memory_use.copied_blocks > 0
    alone, _ = served(folder, [TEXT[:18]] * 3, params=params, num_blocks=40, block_size=8, enable_prefix_caching=False)
    assert forked[0] == alone[0], "the first draws with the seed itself"
    assert len({tuple(one) for one in forked}) == 3


def test_scales_of_a_file_are_those_of_the_record(folder, tmp_path):
    given = {"k": [[0.5, 0.25], 2.0], "v": [1.0, [0.125, 4.0]]}
    path = tmp_path / "scales.json"
    path.write_text(json.dumps(given))
    engine = engine_of(folder, kv_cache_dtype="fp8", kv_scales=str(path))

    assert engine.storage.to_dict() == {"k": [[0.5, 0.25], [2.0, 2.0]], "v": [[1.0, 1.0], [0.125, 4.0]]}
    assert engine.provenance["kv_scales"] == "scales.json"
    path.write_text(json.dumps(engine.storage.to_dict()))
    assert engine_of(folder, kv_cache_dtype="fp8", kv_scales=str(path)).storage.to_dict() == engine.storage.to_dict()


@pytest.mark.parametrize(
    "text,message",
    [
        ("{", "scales.json: expected JSON"),
        ("[1]", "entry for each of 2 layers"),
        ('{"k": [1.0], "v": [1.0, 1.0]}', "entry for each of 2 layers"),
        ('{"k": [1.0, [1.0, 2.0, 3.0]], "v": [1.0, 1.0]}', "scales.json: layer 1: k scale: .* \\(2\\), got 3"),
        ('{"k": [1.0, 1.0], "v": [0.0, 1.0]}', "scales.json: layer 0: v scale: expected finite numbers above 0, got 0"),
        ('{"k": [1.0, 1.0], "v": [null, 1.0]}', "scales.json: layer 0"),
        ('{"k": [1.0, 1e39], "v": [1.0, 1.0]}', "layer 1: k scale: expected finite numbers above 0, got inf"),
        ('{"k": [1.0, 1e-46], "v": [1.0, 1.0]}', "layer 1: k scale: expected finite numbers above 0, got 0"),
        ('{"k": [1.0, 1' + "0" * 400 + '], "v": [1.0, 1.0]}', "layer 1: k scale: expected finite numbers above 0"),
        ('{"k": [1.0, "12"], "v": [1.0, 1.0]}', "layer 1: k scale: expected numbers, got '1'"),
        ('{"k": [1.0, true], "v": [1.0, 1.0]}', "layer 1: k scale: expected numbers, got True"),
        ("[" * 100_000, "scales.json: expected JSON"),
    ],
)
def test_a_file_that_has_no_scales_is_refused_by_name(folder, tmp_path, text, message):
    path = tmp_path / "scales.json"
    path.write_text(text)
    with pytest.raises(EngineError, match=message):
        engine_of(folder, kv_cache_dtype="fp8", kv_scales=str(path))


@pytest.mark.parametrize(
    "options,message",
    [
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: expected auto, float32 or fp8_e4m3 .*got 'int8'"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "got 'fp8_e5m2'"),
        ({"kv_scales": "per-head"}, "kv_scales=per-head: K and V are stored as they are"),
        ({"kv_cache_dtype": "fp8", "attention": "reference-flashinfer"}, "reference-flashinfer keeps no FP8"),
        (
            {"kv_cache_dtype": "fp8", "kv_scales": "per-layer"},
            "kv_scales: expected unit, per-head, per-tensor, or the name of a JSON file, got per-layer: ",
        ),
    ],
)
def test_what_nobody_stores_is_refused(folder, options, message):
    with pytest.raises(EngineError, match=message):
        engine_of(folder, **options)


WITHOUT = {name: one for name, one in BACKENDS.items() if FP8 not in one.capabilities().kv_dtypes}
"""Adapters to libraries, and whoever keeps latents."""


def test_libraries_and_latents_are_without_fp8():
    assert {"flashinfer", "flash-attn-2", "flash-attn-3"} < set(WITHOUT)
    assert {name for name, one in BACKENDS.items() if one.capabilities().mla} < set(WITHOUT)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_backend_without_fp8_is_refused_with_what_to_do_instead(folder, name):
    engine, backend = engine_of(folder), WITHOUT[name]
    config = dataclasses.replace(engine.config, kv_cache_dtype="fp8")
    latent = backend.capabilities().mla
    instead = "none that keeps latents does: say kv_cache_dtype=auto" if latent else "use reference or triton"
    with pytest.raises(EngineError, match=f"attention backend {name} keeps no FP8: {instead}"):
        storage_of(config, engine.architecture, backend, engine.dtype, engine.device)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_layer_of_it_is_refused_before_it_is_made(name):
    backend = WITHOUT[name]
    sizes = (4, 1, 576, 0.1, 0, 0.0, 512) if backend.capabilities().mla else (4, 2, 64, 0.1)
    layer, block_size = LayerConfig(*sizes), backend.capabilities().default_block_size
    with pytest.raises(AttentionInputError, match="float8_e4m3fn"):
        allocate_kv_caches(backend, layer, num_layers=1, num_blocks=2, block_size=block_size, dtype=FP8)
    shape = backend.get_kv_cache_shape(2, block_size, layer.num_kv_heads, layer.head_size)
    with pytest.raises(AttentionInputError, match=r"kv_cache: expected .*got .*float8_e4m3fn"):
        AttentionLayer(backend, layer, torch.zeros(shape).to(FP8), scales=KVScales.of(1.0, 1.0, layer.num_kv_heads))


def test_the_models_own_type_by_name_is_no_quantization(folder):
    assert engine_of(folder, kv_cache_dtype="float32").storage.scales is None
