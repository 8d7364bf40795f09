"""The `triton-mla` backend through the interface, small, in Triton's interpreter, against the definition in float64."""

import math
import os

import pytest
import torch

from engine.attention import AttentionInputError, AttentionLayer, LayerConfig, get_backend
from engine.attention.kernels import launch
from engine.attention.metadata import AttentionMetadata, MLAMetadata
from engine.attention.reference_mla import UpProjections
from tests.engine.attention.kernels.latents import LatentCase
from tests.engine.attention.scenes import TOLERANCE, Scene, worst
from tests.engine.attention.test_reference_mla import run

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="tensors on the CPU need Triton's interpreter"
)
HEADS, RANK, NOPE, ROTARY, V_SIZE = 3, 16, 4, 8, 5
CONFIG = LayerConfig(HEADS, 1, RANK + ROTARY, scale=0.25, kv_lora_rank=RANK)
ROWS = {
    "decode": [(1, 1), (1, 9)],
    "prefill": [(3, 3), (5, 5)],
    "chunked": [(2, 5)],
    "mixed": [(1, 6), (1, 4), (3, 8)],
}
"""(query length, sequence length), about blocks of 4 and of 5."""


def scene_of(kind: str, block_size: int, query_size: int, dtype: torch.dtype = torch.float32) -> Scene:
    """Latents as K of one head, their first RANK elements as its V; queries of a size of their own."""
    scene = Scene(ROWS[kind], block_size, (HEADS, 1, RANK + ROTARY, 1), dtype)
    scene.values = [[latent[:, :RANK] for latent in latents] for latents in scene.keys]
    generator = torch.Generator().manual_seed(1)
    for queries in scene.queries:
        queries[:] = list(torch.randn(len(queries), HEADS, query_size, generator=generator).to(dtype).double())
    return scene


def up_of(dtype: torch.dtype = torch.float32) -> UpProjections:
    generator = torch.Generator().manual_seed(3)
    sizes = (NOPE, V_SIZE)
    return UpProjections(*(torch.randn(HEADS, RANK, size, generator=generator).to(dtype) for size in sizes))


@pytest.mark.parametrize("kind", sorted(ROWS))
@pytest.mark.parametrize("block_size", [4, 5])
def test_absorbed_queries_are_attention_over_one_head_of_latents(kind, block_size):
    scene = scene_of(kind, block_size, RANK + ROTARY)
    assert worst(run(scene, CONFIG, None, "triton-mla"), scene.expected(CONFIG)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    "kind,dtype", [("mixed", torch.float32), ("decode", torch.float16), ("chunked", torch.float16)]
)
def test_with_projections_a_step_is_the_references(kind, dtype):
    ours, theirs = scene_of(kind, 4, NOPE + ROTARY, dtype), scene_of(kind, 4, NOPE + ROTARY, dtype)
    theirs.dtype = torch.float64
    wide = UpProjections(*(one.double() for one in (up_of(dtype).w_uk, up_of(dtype).w_uv)))
    expected = run(theirs, CONFIG, wide, "reference-mla")
    assert worst(run(ours, CONFIG, up_of(dtype), "triton-mla"), expected) < 20 * TOLERANCE[dtype]


def test_a_decode_step_may_have_padded_rows_and_its_own_output():
    scene = scene_of("decode", 4, RANK + ROTARY)
    backend = get_backend("triton-mla")
    cache = torch.full((scene.num_blocks, 4, RANK + ROTARY), math.nan)
    for row, (_, length) in enumerate(scene.rows):
        for position in range(length - 1):
            cache[scene.place(row, position)] = scene.keys[row][position][0].float()
    metadata = backend.get_builder_cls()(4).build([1, 1], [1, 9], scene.tables, num_padded_seqs=1)
    q, latents, _ = (torch.cat((x, torch.full_like(x[:1], math.nan))) for x in scene.new_tokens())
    out, before = torch.full((3, HEADS, RANK), math.nan), int(cache.isnan().sum())
    layer = AttentionLayer(backend, CONFIG, cache)
    assert layer(q, latents[..., :RANK], latents[..., RANK:], metadata, out) is out
    assert worst(out[:2], scene.expected(CONFIG)) < TOLERANCE[torch.float32]
    assert not out[2].any()
    assert cache.isnan().sum() == before - 2 * (RANK + ROTARY)  # two latents, nothing of the padded row


def test_all_layers_of_a_step_share_one_plan(monkeypatch):
    scene, made = scene_of("mixed", 4, RANK + ROTARY), []
    real = launch.plan_mla
    monkeypatch.setattr(launch, "plan_mla", lambda *arguments: made.append(real(*arguments)) or made[-1])
    backend = get_backend("triton-mla")
    metadata = scene.metadata(backend.get_builder_cls()(4), 0)
    q, latents, _ = scene.new_tokens()
    for _ in range(3):
        cache = torch.zeros(scene.num_blocks, 4, RANK + ROTARY)
        AttentionLayer(backend, CONFIG, cache)(q, latents[..., :RANK], latents[..., RANK:], metadata)
    assert len(made) == 1


def test_chunks_may_begin_behind_tokens_of_no_row():
    """As the engine's second call of a mixed step: only the device knows where the chunks begin."""
    case = LatentCase([9, 8], [2, 3], HEADS, RANK, ROTARY, block_size=4)
    cache, table = case.pool()
    strays = 4
    q = torch.cat((torch.full((strays, HEADS, RANK + ROTARY), math.nan), case.q))
    step = AttentionMetadata(
        case.query_start_loc + strays, case.seq_lens, 3, 9, table, torch.full((len(q),), -1, dtype=torch.int64)
    )
    config = LayerConfig(HEADS, 1, RANK + ROTARY, case.scale, kv_lora_rank=RANK)
    out = torch.full((len(q), HEADS, RANK), math.nan)
    AttentionLayer(get_backend("triton-mla"), config, cache).impl.attend(q, cache, MLAMetadata.of(step), out)
    assert worst(out[strays:], case.expected()) < TOLERANCE[torch.float32]


def test_a_planted_read_before_write_is_nan(monkeypatch):
    def swapped(self, query, key, value, kv_cache, metadata, out=None):
        result = self.attend(query, kv_cache, metadata, out)
        self.write(key, value, kv_cache, metadata)
        return result

    monkeypatch.setattr("engine.attention.triton_mla.TritonMLAImpl.forward", swapped)
    assert run(scene_of("mixed", 4, RANK + ROTARY), CONFIG, None, "triton-mla").isnan().any()


def test_block_copies_equal_the_references():
    pairs = torch.tensor([[0, 1], [1, 2], [2, 0]])
    ours = [torch.randn(4, 3, RANK + ROTARY) for _ in range(2)]
    theirs = [cache.clone() for cache in ours]
    get_backend("triton-mla").copy_blocks(ours, pairs)
    get_backend("reference-mla").copy_blocks(theirs, pairs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"window": 4}, "window"),
        ({"soft_cap": 1.0}, "soft"),
        ({"kv_lora_rank": 12, "head_size": 24}, "rank"),
        ({"head_size": 20, "kv_lora_rank": 16}, "head_size"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
    ],
)
def test_a_layer_that_the_kernels_cannot_do_is_refused(changes, message):
    options = {"head_size": RANK + ROTARY, "scale": 0.25, "kv_lora_rank": RANK} | changes
    with pytest.raises(AttentionInputError, match=message):
        get_backend("triton-mla").check_layer(LayerConfig(HEADS, 1, **options), 4, torch.float32)
