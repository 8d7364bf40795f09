"""Multi-head latent attention against its definition: every head's K and V made from every latent, token by token."""

import math

import pytest
import torch

from engine.attention import AttentionInputError, AttentionLayer, KVLayout, LayerConfig, get_backend
from engine.attention.reference_mla import UpProjections
from tests.engine.attention.scenes import (
    TOLERANCE,
    Scene,
    attend_by_definition,
    batch,
    worst,
)

HEADS, RANK, NOPE, ROTARY, V_SIZE = 3, 6, 4, 2, 5
LATENT = RANK + ROTARY


def up_of(generator: torch.Generator, dtype=torch.float64) -> UpProjections:
    w_uk = torch.randn(HEADS, RANK, NOPE, generator=generator, dtype=torch.float64)
    w_uv = torch.randn(HEADS, RANK, V_SIZE, generator=generator, dtype=torch.float64)
    return UpProjections(w_uk.to(dtype), w_uv.to(dtype))


def config_of(window=0, soft_cap=0.0) -> LayerConfig:
    scale = (NOPE + ROTARY) ** -0.5
    return LayerConfig(HEADS, 1, LATENT, scale, window=window, soft_cap=soft_cap, kv_lora_rank=RANK)


def latents_of(scene: Scene) -> list[list[torch.Tensor]]:
    """[1, latent] of every token: the scene's keys."""
    return scene.keys


def run(scene: Scene, config: LayerConfig, up: UpProjections | None, backend="reference-mla") -> torch.Tensor:
    """A step through the layer, over a pool that is NaN wherever the step must not look."""
    cache = torch.full((scene.num_blocks, scene.block_size, config.head_size), math.nan, dtype=scene.dtype)
    for row, (new, length) in enumerate(scene.rows):
        for position in range(scene.first_seen(row, config.window), length - new):
            cache[scene.place(row, position)] = latents_of(scene)[row][position][0].to(scene.dtype)
    held = cache.clone()
    chosen = get_backend(backend)
    metadata = scene.metadata(chosen.get_builder_cls()(scene.block_size), config.window)
    q, latents, _ = scene.new_tokens()
    c, rotary = latents[..., : config.kv_lora_rank], latents[..., config.kv_lora_rank :]
    out = AttentionLayer(chosen, config, cache, up=up)(q, c, rotary, metadata)
    for row, (new, length) in enumerate(scene.rows):
        for position in range(length - new, length):
            held[scene.place(row, position)] = latents_of(scene)[row][position][0].to(scene.dtype)
    assert torch.equal(cache.nan_to_num(1e30), held.nan_to_num(1e30))
    return out


def by_definition(scene: Scene, config: LayerConfig, up: UpProjections) -> torch.Tensor:
    """K of a head is (c @ w_uk, rotary), V is c @ w_uv, for every token; then attention of every head by itself."""
    w_uk, w_uv = up.w_uk.double(), up.w_uv.double()
    outputs = []
    for row, (new, length) in enumerate(scene.rows):
        keys, values = [], []
        for (latent,) in latents_of(scene)[row]:
            c, rotary = latent[:RANK], latent[RANK:]
            keys.append(torch.stack([torch.cat((c @ w_uk[h], rotary)) for h in range(HEADS)]))
            values.append(torch.stack([c @ w_uv[h] for h in range(HEADS)]))
        for index, query in enumerate(scene.queries[row]):
            at = length - new + index
            outputs.append(
                attend_by_definition(
                    query, keys, values, at, scale=config.scale, window=config.window, soft_cap=config.soft_cap
                )
            )
    return torch.stack(outputs)


def scene_of(kind: str, block_size: int, query_size: int, dtype=torch.float64, seed=0) -> Scene:
    """Latents as K of one head; queries of HEADS heads with their own size."""
    scene = Scene(batch(kind, block_size), block_size, (HEADS, 1, LATENT, 1), dtype, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for queries in scene.queries:
        drawn = torch.randn(len(queries), HEADS, query_size, generator=generator, dtype=torch.float64)
        queries[:] = list(drawn.to(dtype).double())
    return scene


@pytest.mark.parametrize("kind", ["decode", "prefill", "chunked", "mixed"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("window,soft_cap", [(0, 0.0), (5, 0.0), (0, 1.5)])
def test_absorbed_decodes_and_expanded_prefills_equal_the_definition(kind, block_size, window, soft_cap):
    scene, up = scene_of(kind, block_size, NOPE + ROTARY), up_of(torch.Generator().manual_seed(3))
    config = config_of(window, soft_cap)
    assert worst(run(scene, config, up), by_definition(scene, config, up)) < 10 * TOLERANCE[torch.float64]


@pytest.mark.parametrize("kind", ["decode", "prefill", "chunked", "mixed"])
def test_absorbed_queries_are_attention_over_one_head_of_latents(kind):
    scene, config = scene_of(kind, 4, LATENT), config_of()
    scene.values = [[latent[:, :RANK] for latent in latents] for latents in latents_of(scene)]
    assert worst(run(scene, config, None), scene.expected(config)) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("kind", ["decode", "prefill", "mixed"])
def test_latents_that_are_read_before_they_are_written_are_nan(monkeypatch, kind):
    def swapped(self, query, key, value, kv_cache, metadata, out=None):
        result = self.attend(query, kv_cache, metadata, out)
        self.write(key, value, kv_cache, metadata)
        return result

    monkeypatch.setattr("engine.attention.reference_mla.ReferenceMLAImpl.forward", swapped)
    scene, up = scene_of(kind, 4, NOPE + ROTARY), up_of(torch.Generator().manual_seed(3))
    assert run(scene, config_of(), up).isnan().any()


def test_both_ways_give_the_same_numbers():
    """The last token of a chunk, once as part of the chunk and once as a decode."""
    up, config = up_of(torch.Generator().manual_seed(5)), config_of()
    chunk = Scene([(4, 9)], 4, (HEADS, 1, LATENT, 1), seed=2)
    chunk.queries = [list(torch.randn(4, HEADS, NOPE + ROTARY, dtype=torch.float64))]
    decode = Scene([(1, 9)], 4, (HEADS, 1, LATENT, 1), seed=2)
    decode.queries = [chunk.queries[0][-1:]]
    assert worst(run(decode, config, up)[-1], run(chunk, config, up)[-1]) < 10 * TOLERANCE[torch.float64]


def test_flash_mla_takes_its_own_sizes():
    config = LayerConfig(2, 1, 576, 192**-0.5, kv_lora_rank=512)
    scene = Scene([(1, 63), (1, 65), (3, 66)], 64, (2, 1, 576, 1))
    scene.values = [[latent[:, :512] for latent in latents] for latents in latents_of(scene)]
    out = run(scene, config, None, "reference-flash-mla")
    assert worst(out, scene.expected(config)) < TOLERANCE[torch.float64]


def test_narrow_types_are_within_their_rounding():
    scene = scene_of("mixed", 4, NOPE + ROTARY, torch.bfloat16)
    up, config = up_of(torch.Generator().manual_seed(3), torch.bfloat16), config_of()
    assert worst(run(scene, config, up), by_definition(scene, config, up)) < 4 * TOLERANCE[torch.bfloat16]


def test_faults_of_tables_are_found_before_the_write():
    scene = scene_of("mixed", 4, NOPE + ROTARY)
    chosen, config = get_backend("reference-mla"), config_of()
    metadata = scene.metadata(chosen.get_builder_cls()(4))
    metadata.prefill.block_table[-1, 0] = 10**6
    cache = torch.full((scene.num_blocks, 4, LATENT), math.nan, dtype=torch.float64)
    layer = AttentionLayer(chosen, config, cache, up=up_of(torch.Generator()))
    q, latents, _ = scene.new_tokens()
    with pytest.raises(AttentionInputError, match=r"expected blocks 0 to \d+ .* got .*1000000"):
        layer(q, latents[..., :RANK], latents[..., RANK:], metadata)
    assert cache.isnan().all()


@pytest.mark.parametrize(
    "change,message",
    [
        ({"key": torch.zeros(2, 1, RANK + 1)}, r"key: expected shape \[2, 1, 6\], got \[2, 1, 7\]"),
        ({"value": torch.zeros(2, 1, ROTARY).half()}, r"v: expected float32, got float16"),
        ({"query": torch.zeros(2, HEADS, LATENT)}, r"query: expected shape \[2, 3, 6\], got \[2, 3, 8\]"),
        ({"out": torch.zeros(2, HEADS, RANK)}, r"out: expected shape \[2, 3, 5\], got \[2, 3, 6\]"),
    ],
)
def test_wrong_tensors_are_refused_with_expected_and_got(change, message):
    chosen = get_backend("reference-mla")
    up = up_of(torch.Generator(), torch.float32)
    cache = torch.zeros(2, 4, LATENT)
    layer = AttentionLayer(chosen, config_of(), cache, up=up)
    given = {
        "query": torch.zeros(2, HEADS, NOPE + ROTARY),
        "key": torch.ones(2, 1, RANK),
        "value": torch.ones(2, 1, ROTARY),
    }
    metadata = chosen.get_builder_cls()(4).build([2], [2], [[1]])
    with pytest.raises(AttentionInputError, match=message):
        layer(**{**given, **change}, metadata=metadata)
    assert not cache.any()


def test_projections_must_fit_each_other_and_the_layer():
    with pytest.raises(AttentionInputError, match=r"w_uv: expected shape \[2, 6, v_head_dim\], got \[3, 6, 5\]"):
        UpProjections(torch.zeros(2, 6, 4), torch.zeros(3, 6, 5))
    up = UpProjections(torch.zeros(2, 6, 4), torch.zeros(2, 6, 5))
    with pytest.raises(AttentionInputError, match=r"w_uk: expected \(H, kv_lora_rank\) = \(3, 6\)"):
        AttentionLayer(get_backend("reference-mla"), config_of(), torch.zeros(1, 4, LATENT), up=up)


def test_a_latent_layout_has_one_head():
    with pytest.raises(AttentionInputError, match="expected num_kv_heads=1"):
        KVLayout.LATENT.shape(2, 4, 2, LATENT)
