"""Models that cache latents through the whole engine: transformers' logits, whatever becomes of the blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the engine computes on torch tensors")
pytest.importorskip("transformers", reason="the reference extra is not installed")

from engine.attention.layouts import KVLayout  # noqa: E402
from engine.attention.reference_backends import ReferenceMLA  # noqa: E402
from engine.attention.reference_mla import ReferenceMLAImpl  # noqa: E402
from engine.core.catalogue import lookup  # noqa: E402
from engine.llm import LLM  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.worker import backend_choice, kv_memory  # noqa: E402
from engine.worker.backend_choice import backend_of, keeps_latents  # noqa: E402
from engine.worker.budget import EngineError  # noqa: E402
from engine.worker.engine import Engine  # noqa: E402
from tests.engine.model.tiny import logits_of  # noqa: E402
from tests.engine.worker import latent  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(latent.ON_DEVICE, reason="test_gpu_latent.py does it on a device"),
]
TOLERANCE = 1e-4
TEXTS = latent.texts_of(7)
GREEDY = SamplingParams(max_tokens=7, temperature=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """From a name to transformers' model, its logits of all texts, and an engine of the folder that it saved to."""
    made = {}

    def get(name, **changes):
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            model = latent.saved(folder, name, **changes)
            made[name] = model, latent.expected(model, TEXTS), latent.engine_of(folder)
        return made[name]

    return get


@pytest.mark.parametrize(
    "name,block_size,options",
    [
        ("deepseek-v3", 1, {}),
        ("deepseek-v3", 4, {}),
        ("deepseek-v3", 16, {}),
        ("deepseek-v3", 64, {"num_slots": 192}),
        ("deepseek-v3", 4, {"budget": 5}),
        ("deepseek-v3", 4, {"padded": True}),
        ("deepseek-v3", 4, {"allocator": "contiguous-chunk(16)-first-fit"}),
        ("deepseek-v3", 16, {"allocator": "orca-oracle", "kernel": "contiguous", "num_slots": 160}),
        ("deepseek-v2", 4, {"budget": 7}),
        ("deepseek-v2", 16, {"padded": True, "budget": 11}),
    ],
    ids=str,
)
def test_every_block_size_and_mixture_of_steps_gives_their_logits(name, block_size, options, models):
    _, expected, engine = models(name)
    served = latent.forced(engine, TEXTS, block_size=block_size, **{"num_slots": 96, **options})
    assert latent.furthest(served.logits, expected) <= TOLERANCE
    assert any(one.num_decodes and not one.num_chunk_tokens for one in served.steps), "no step of decodes alone"
    assert any(one.num_decodes and one.num_chunk_tokens for one in served.steps), "no mixed step"
    assert engine.backend is ReferenceMLA
    assert engine.layout is KVLayout.LATENT
    if "allocator" not in options and block_size < 64:
        assert served.num_hit_tokens > 0
    if not options:
        assert served.num_preempted > 0


def test_latents_in_fp8_are_refused(models):
    folder = models("deepseek-v3")[2].config.model
    with pytest.raises(EngineError, match="reference-mla keeps no FP8: none that keeps latents does: say kv_cache_dty"):
        latent.engine_of(folder, kv_cache_dtype="fp8")


def test_latents_come_back_from_host_memory(models):
    _, expected, engine = models("deepseek-v3")
    served = latent.forced(engine, TEXTS, block_size=4, num_slots=96, preemption="swap")
    assert served.num_swapped > 0
    assert latent.furthest(served.logits, expected) <= TOLERANCE


class StraysImpl(ReferenceMLAImpl):
    """Takes chunks that begin behind the decodes, as kernels do, and writes NaN for every token of no row."""

    def attend(self, query, kv_cache, metadata, out=None):
        if metadata.prefill is None:
            return super().attend(query, kv_cache, metadata, out)
        out.fill_(torch.nan)
        starts = metadata.prefill.query_start_loc
        first, stop = int(starts[0]), int(starts[-1])
        part = replace(metadata.prefill, query_start_loc=starts - first)
        own = replace(metadata, slot_mapping=metadata.slot_mapping[first:stop], prefill=part)
        super().attend(query[first:stop], kv_cache, own, out[first:stop])
        return out


class Strays(ReferenceMLA):
    """Stands for a backend whose steps are captured."""

    @staticmethod
    def get_impl_cls():
        return StraysImpl


def test_what_a_captured_backend_does_to_tokens_of_no_row_changes_nothing(models, monkeypatch):
    _, expected, engine = models("deepseek-v3")
    captured = Engine(engine.config)
    captured.backend = Strays
    monkeypatch.setattr(kv_memory, "never_waits", lambda backend: backend is Strays)
    for padded in (True, False):
        served = latent.forced(captured, TEXTS, block_size=4, num_slots=96, padded=padded)
        assert latent.furthest(served.logits, expected) <= TOLERANCE
    monkeypatch.setattr(kv_memory, "TritonBackend", Strays)  # a planted fault: as if it left them alone
    with pytest.raises(AssertionError):
        assert latent.furthest(latent.forced(captured, TEXTS, block_size=4, num_slots=96).logits, expected) <= TOLERANCE


def test_flash_mlas_own_sizes_give_their_logits(tmp_path):
    """A latent of 512 + 64 elements in blocks of 64 tokens, by the backend that takes nothing else."""
    model = latent.saved(tmp_path, "deepseek-v3", kv_lora_rank=512, qk_rope_head_dim=64)
    engine = latent.engine_of(tmp_path, attention="reference-flash-mla")
    served = latent.forced(engine, TEXTS[:3], block_size=64, num_slots=256)
    assert latent.furthest(served.logits, latent.expected(model, TEXTS[:3])) <= TOLERANCE
    with pytest.raises(ValueError, match="expected block_size 64, got 16"):
        latent.forced(engine, TEXTS[:1], block_size=16, num_slots=256)


def greedy(model, tokens, count):
    """Each token chosen from a pass over all before it."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[-count:]


def llm_over(engine, **options):
    return LLM(engine, **{"block_size": 4, "num_blocks": 30, "max_num_seqs": latent.SEQS, **options})


def test_generate_goes_on_as_transformers_does(models):
    model, _, engine = models("deepseek-v3")
    prompts = [tokens[:prompt] for tokens, prompt in TEXTS[:4]]
    answers = llm_over(engine).generate(prompts, GREEDY)
    assert [answer.outputs[0].token_ids for answer in answers] == [greedy(model, prompt, 7) for prompt in prompts]


def test_forks_copy_on_write_and_beams_do_not_depend_on_blocks(models):
    _, _, engine = models("deepseek-v3")
    prompts = [tokens[:prompt] for tokens, prompt in TEXTS[:3]]
    params = SamplingParams(max_tokens=6, temperature=1.1, seed=4, n=3)
    forking = llm_over(engine)
    forked = forking.generate(prompts, params)
    assert forking.memory_use.copied_blocks > 0
    assert forked == llm_over(engine, block_size=1, num_blocks=120).generate(prompts, params, samples="requests")
    beams = [
        llm_over(engine, block_size=size, num_blocks=160 // size).generate(prompts, GREEDY, beam_width=3)
        for size in (4, 16)
    ]
    assert [[one.token_ids for one in answer.outputs] for answer in beams[0]] == [
        [one.token_ids for one in answer.outputs] for answer in beams[1]
    ]


def test_a_block_holds_latents_and_not_k_and_v(models):
    _, _, engine = models("deepseek-v3")
    assert engine.block_bytes(16) == 2 * 16 * (32 + 8) * 4
    spec = lookup(engine.config.model).kv_spec("float32")
    assert engine.block_bytes(16) == spec.block_bytes(16)
    llm = llm_over(engine)
    assert sum(cache.nbytes for cache in llm.executor.kv.caches) == 31 * engine.block_bytes(4)
    assert {tuple(cache.shape) for cache in llm.executor.kv.caches} == {(31, 4, 40)}


# which backend -------------------------------------------------------------------------------------------------------


def test_the_devices_own_backend_keeps_what_the_model_caches(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert backend_of("auto", cpu, latent=True).get_name() == "reference-mla"
    assert backend_of("auto", cpu, latent=False).get_name() == "reference"

    class Fast(ReferenceMLA):
        """Stands for kernels that keep latents."""

        @staticmethod
        def get_name():
            return "triton-latents"

    others = {name: one for name, one in backend_choice.BACKENDS.items() if not name.startswith("triton")}
    monkeypatch.setattr(backend_choice, "BACKENDS", {**others, "triton-latents": Fast})
    assert backend_of("auto", cuda, latent=True) is Fast
    monkeypatch.setattr(backend_choice, "BACKENDS", others)
    with pytest.raises(EngineError, match=r"of cuda's own \(triton...\) keeps latents: name one of reference-mla, ref"):
        backend_of("auto", cuda, latent=True)


@pytest.mark.parametrize(
    "name,kept,complaint",
    [
        ("reference", True, "it keeps K and V, and this model caches latents: use reference-mla or reference-flash"),
        ("reference-mla", False, "it keeps latents, and this model caches K and V: use reference or reference-flash-a"),
    ],
)
def test_a_backend_that_keeps_something_else_is_refused(name, kept, complaint):
    with pytest.raises(EngineError, match=f"attention backend {name}: {complaint}"):
        backend_of(name, torch.device("cpu"), latent=kept)


def test_a_backend_with_metadata_that_nobody_makes_is_refused(monkeypatch):
    class Strange(ReferenceMLA):
        """Of another world."""

        @staticmethod
        def get_metadata_cls():
            return dict

    monkeypatch.setattr(backend_choice, "get_backend", lambda name: Strange)
    with pytest.raises(EngineError, match=r"no metadata for it \(dict has no `of`"):
        backend_of("strange", torch.device("cpu"), latent=True)


@pytest.mark.parametrize(
    "name,latents", [("deepseek-v3", True), ("deepseek-ai/DeepSeek-V2-Lite", True), ("llama-3-8b", False), ("x", False)]
)
def test_a_configuration_says_whether_latents_are_cached(name, latents):
    assert keeps_latents(name) is latents


def test_what_waits_for_the_device_is_not_captured_in_graphs():
    waiting = {name for name, one in backend_choice.BACKENDS.items() if not backend_choice.never_waits(one)}
    assert {name for name in backend_choice.BACKENDS if name.startswith("reference")} <= waiting
    assert "triton" not in waiting
