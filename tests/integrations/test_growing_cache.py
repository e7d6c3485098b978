"""The growing cache inside transformers: the same tokens as DynamicCache, whatever the growth."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.bloom import BloomConfig
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.opt import OPTConfig
from transformers.models.qwen2 import Qwen2Config

from hf_reference import as_cache
from pairs import pairwise
from suffice.cache.bmc import BMC
from suffice.errors import InputError, OutOfMemory
from suffice.integrations.growing_cache import GrowingCache, GrowingLayer, reused_masks
from suffice.integrations.grown import grown

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GATED = SIZES | {"num_key_value_heads": 2, "intermediate_size": 48}
WINDOW = 9
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**GATED),
    "qwen2": lambda: Qwen2Config(**GATED),
    "opt": lambda: OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32, init_std=0.4),
    "gpt2": lambda: GPT2Config(**SIZES),
    "mistral": lambda: MistralConfig(**GATED, sliding_window=WINDOW),
    "gemma3": lambda: Gemma3TextConfig(
        **GATED,
        head_dim=16,
        tie_word_embeddings=False,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
FAMILIES = list(CONFIGS)
GROWTHS = ["bmc:ratio=0.1", "bmc:rows=8", "iterative", "upfront", "step:5", "double"]
ATTENTION = ["sdpa", "eager"]
NEW_TOKENS = 16


@cache
def model_of(family: str, attention: str) -> Any:
    torch.manual_seed(FAMILIES.index(family))
    model = AutoModelForCausalLM.from_config(CONFIGS[family](), attn_implementation=attention)
    return model.eval()


def prompts(batch: int) -> dict[str, torch.Tensor]:
    """Prompts of 11, 7 and 1 tokens, padded on the left."""
    tokens = torch.randint(2, 97, (batch, 11), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(tokens)
    for row, padding in zip(range(batch), (0, 4, 10), strict=False):
        mask[row, :padding] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def generate(model: Any, past: Any, batch: int, **options: Any) -> torch.Tensor:
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False} | options
    result: torch.Tensor = model.generate(**prompts(batch), **as_cache(past), **options)
    return result


@cache
def expected(family: str, attention: str, batch: int, beams: int = 1) -> torch.Tensor:
    model = model_of(family, attention)
    return generate(model, DynamicCache(config=model.config), batch, num_beams=beams)


def test_bmc_knows_how_many_heads_share_a_key() -> None:  # Eq. 8
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=2)
    (layer, *_) = GrowingCache(config, BMC(ratio=0.1)).layers
    assert layer.growth == BMC(ratio=0.1, group=4)


# A growth moves memory, whatever the model: one model is run with all of them, all models with one.
EVERY_GROWTH = [("llama", "sdpa", *each) for each in pairwise(GROWTHS, [1, 3], [True, False])]
EVERY_FAMILY = [
    (family, attention, "step:5", batch, padded)
    for family in FAMILIES
    for attention, batch, padded in (("eager", 3, True), ("eager", 1, False), ("sdpa", 3, False))
    if (family, attention) != ("llama", "sdpa")
]


@pytest.mark.parametrize(
    ("family", "attention", "growth", "batch", "padded"), [*EVERY_GROWTH, *EVERY_FAMILY]
)
def test_tokens_equal_dynamic_cache(
    family: str, attention: str, growth: str, batch: int, padded: bool
) -> None:
    model = model_of(family, attention)
    past = GrowingCache(model.config, growth, padded=padded)
    tokens = generate(model, past, batch)
    assert torch.equal(tokens, expected(family, attention, batch))
    assert past.get_seq_length() == 11 + NEW_TOKENS - 1
    assert len(set(tokens[0, 11:].tolist())) > 3, "a constant output would prove nothing"


@pytest.mark.parametrize(("attention", "batch"), [("sdpa", 1), ("sdpa", 3), ("eager", 3)])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_with_reused_masks(family: str, attention: str, batch: int) -> None:
    model = model_of(family, attention)
    with reused_masks(model):
        tokens = generate(model, GrowingCache(model.config, "step:8"), batch)
    assert "create_masks_for_generate" not in vars(model)
    assert torch.equal(tokens, expected(family, attention, batch))


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "views"])
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_beam_search(family: str, attention: str, padded: bool) -> None:
    model = model_of(family, attention)
    past = GrowingCache(model.config, "step:8", padded=padded)
    with reused_masks(model):
        tokens = generate(model, past, 3, num_beams=3)
    assert torch.equal(tokens, expected(family, attention, 3, beams=3))


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "views"])
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
def test_prompt_lookup_crops_the_cache(
    family: str, attention: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(family, attention)
    cropped: list[int] = []
    crop = GrowingLayer.crop

    def recorded(layer: GrowingLayer, tokens_to_remove: int) -> None:
        cropped.append(tokens_to_remove)
        crop(layer, tokens_to_remove)

    monkeypatch.setattr(GrowingLayer, "crop", recorded)
    past = GrowingCache(model.config, "step:8", padded=padded)
    tokens = generate(model, past, 1, prompt_lookup_num_tokens=4, max_matching_ngram_size=1)
    assert torch.equal(tokens, expected(family, attention, 1))
    assert min(cropped) < 0, "no draft was ever refused: the test is empty"


@pytest.mark.parametrize("attention", ATTENTION)
def test_one_token_at_a_time_without_a_mask(attention: str) -> None:
    model = model_of("llama", attention)
    ours, theirs = GrowingCache(model.config, "step:8"), DynamicCache(config=model.config)
    for token in prompts(1)["input_ids"][0]:
        step = token.view(1, 1)
        with torch.no_grad():
            actual = model(step, **as_cache(ours)).logits
            wanted = model(step, **as_cache(theirs)).logits
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


class Unmasked(GrowingLayer):
    """Broken on purpose: lets a mask be skipped although there are spare rows."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_compileable = False


def test_the_comparison_bites() -> None:
    model = model_of("llama", "sdpa")
    past = GrowingCache(model.config, "step:8")
    broken = [Unmasked(layer.growth, layer.limit, True) for layer in past.layers]
    past.layers = broken
    step = torch.tensor([[5]])
    exact = DynamicCache(config=model.config)
    with torch.no_grad():
        for _ in range(3):
            actual = model(step, **as_cache(past)).logits
            wanted = model(step, **as_cache(exact)).logits
    assert not torch.allclose(actual, wanted, rtol=1e-3)


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rows_are_written_in_place_until_the_cache_grows() -> None:
    past = GrowingCache(CONFIGS["llama"](), "step:4")
    keys, _ = past.update(rows(2, 2, 3, 8), rows(2, 2, 3, 8, seed=1), 0)
    first = keys.data_ptr()
    assert past.layers[0].capacity == 4 and keys.shape[2] == 3
    keys, values = past.update(rows(2, 2, 1, 8), rows(2, 2, 1, 8), 0)
    assert keys.data_ptr() == first and keys.is_contiguous() and values.is_contiguous()
    assert past.get_mask_sizes(1, 0) == (8, 0)
    keys, _ = past.update(rows(2, 2, 1, 8), rows(2, 2, 1, 8), 0)
    assert keys.data_ptr() != first and keys.shape[2] == 8
    assert torch.equal(keys[:, :, :3], rows(2, 2, 3, 8))
    assert (keys[:, :, 5:] == 0).all()
    assert past.layers[0].bytes == 2 * 2 * 2 * 8 * 8 * 4 == past.bytes


def test_crop_then_append_is_never_cropped() -> None:
    short, long = (GrowingCache(CONFIGS["llama"](), "step:4") for _ in range(2))
    for past in (short, long):
        past.update(rows(1, 2, 5, 8), rows(1, 2, 5, 8, seed=1), 0)
    long.update(rows(1, 2, 2, 8, seed=2), rows(1, 2, 2, 8, seed=3), 0)
    long.layers[0].crop(-2)
    for past in (short, long):
        past.update(rows(1, 2, 1, 8, seed=4), rows(1, 2, 1, 8, seed=5), 0)
    assert torch.equal(short.layers[0].keys, long.layers[0].keys)
    assert torch.equal(short.layers[0].values, long.layers[0].values)


def test_the_mask_is_one_row_reused_until_the_cache_grows() -> None:
    past = GrowingCache(CONFIGS["llama"](), "step:4")
    for layer in past.layers:
        layer.update(rows(3, 2, 1, 8), rows(3, 2, 1, 8))
    seen = []
    for _ in range(4):
        mask = past.decode_mask(torch.float32, torch.ones(3, past.get_seq_length() + 1))
        lowest = torch.finfo(torch.float32).min
        columns = past.get_seq_length() + 1
        assert mask.shape == (1, 1, 1, past.get_mask_sizes(1, 0)[0])
        assert (mask[..., :columns] == 0).all() and (mask[..., columns:] == lowest).all()
        seen.append(mask.data_ptr())
        for layer in past.layers:
            layer.update(rows(3, 2, 1, 8), rows(3, 2, 1, 8))
    assert len(set(seen[:3])) == 1 and seen[3] != seen[2]


def test_the_mask_follows_padding_crops_and_other_requests() -> None:
    past = GrowingCache(CONFIGS["llama"](), "upfront", limit=8)
    for layer in past.layers:
        layer.update(rows(2, 2, 4, 8), rows(2, 2, 4, 8))
    padding = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for wanted in (padding, padding[:, :4], padding.flip(0)[:, :5], torch.ones(2, 5)):
        past.layers[0].length = wanted.shape[1] - 1
        mask = past.decode_mask(torch.float32, wanted)
        opened = (mask == 0).expand(2, 1, 1, 8)[:, 0, 0, : wanted.shape[1]]
        assert torch.equal(opened, wanted != 0)
        assert (mask[..., wanted.shape[1] :] < -1e38).all()


def test_batch_changes_and_reset() -> None:
    past = GrowingCache(CONFIGS["llama"](), "step:4")
    past.update(rows(2, 2, 3, 8), rows(2, 2, 3, 8, seed=1), 0)
    past.layers[0].batch_repeat_interleave(2)
    past.layers[0].reorder_cache(torch.tensor([3, 0]))
    assert torch.equal(past.layers[0].keys[:, :, :3], rows(2, 2, 3, 8)[[1, 0]])
    past.reset()
    assert past.get_seq_length() == 0 and past.bytes == 0
    past.update(rows(1, 2, 2, 8), rows(1, 2, 2, 8), 0)
    assert past.get_seq_length() == 2


def test_more_rows_than_the_limit_are_refused_and_nothing_is_lost() -> None:
    past = GrowingCache(CONFIGS["llama"](), "step:4", limit=6)
    past.update(rows(1, 2, 5, 8), rows(1, 2, 5, 8), 0)
    with pytest.raises(InputError, match=r"^the cache is limited to 6 rows; 7 are needed$"):
        past.update(rows(1, 2, 2, 8), rows(1, 2, 2, 8), 0)
    assert past.get_seq_length() == 5
    assert past.update(rows(1, 2, 1, 8), rows(1, 2, 1, 8), 0)[0].shape[2] == 6


def test_no_memory_is_one_line_and_nothing_is_lost() -> None:
    past = GrowingCache(CONFIGS["llama"](), "double", limit=2**60)
    past.update(rows(1, 2, 3, 8), rows(1, 2, 3, 8), 0)
    past.layers[0].growth = BMC(rows=2**50)
    with pytest.raises(OutOfMemory) as error:
        past.update(rows(1, 2, 1, 8), rows(1, 2, 1, 8), 0)
    assert str(error.value) == (
        f"no memory for {2**50} rows of keys or values ({2**50 * 64} bytes in one layer)"
    )
    assert past.get_seq_length() == 3 and past.layers[0].capacity == 3


def config_with(**fields: Any) -> Any:
    config = CONFIGS["llama"]()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, {"growth": "bcm"}, "unknown growth 'bcm'. Did you mean 'bmc'?"),
        ({}, {"growth": 3}, "growth=3 must be a growth policy or its name. Known: bmc, double"),
        ({}, {"growth": BMC}, f"growth={BMC!r} must be a growth policy or its name."),
        ({}, {"limit": 0}, "limit=0 must be a whole number of at least 1 row"),
        ({}, {"limit": "x"}, "limit='x' must be a whole number of at least 1 row"),
        ({}, {"limit": True}, "limit=True must be a whole number of at least 1 row"),
        (
            {"is_encoder_decoder": True},
            {},
            "GrowingCache serves decoder-only models; 'llama' has cross-attention",
        ),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            {},
            "unknown layer type of 'llama' 'linear_attention'.",
        ),
        (
            {"_attn_implementation": "flex_attention"},
            {},
            "unknown attention for a padded cache 'flex_attention'. Known: eager, sdpa",
        ),
    ],
)
def test_unsupported_uses_are_refused(
    config: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        GrowingCache(config_with(**config), **options)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^config must be a model's configuration \(model.config\), not int$"
    ):
        GrowingCache(3)


@pytest.mark.parametrize("rows_held", [5, 13, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_views_are_attended_to_bit_for_bit_and_so_is_a_mask_that_hides_nothing(
    dtype: torch.dtype, rows_held: int
) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    query, keys, values = (rows(1, 4, n, 8, seed=n).to(dtype) for n in (1, rows_held, rows_held))
    wanted = attend(query, keys, values)
    spare = [torch.cat([part, torch.zeros_like(part)], dim=2) for part in (keys, values)]
    views = [part[:, :, :rows_held] for part in spare]
    assert torch.equal(attend(query, *views), wanted)
    nothing = torch.zeros(1, 1, 1, rows_held, dtype=dtype)
    assert torch.equal(attend(query, keys, values, attn_mask=nothing), wanted)


def test_a_model_without_a_context_length_needs_a_limit() -> None:
    config = BloomConfig(n_layer=2)
    with pytest.raises(InputError, match=r"^the model's config names no context length: give lim"):
        GrowingCache(config)
    assert GrowingCache(config, limit=64).get_max_length() == 64


@pytest.mark.parametrize("count", [1, -4])
def test_crop_takes_rows_away_only(count: int) -> None:
    layer = GrowingLayer(BMC(rows=4), 8, True)
    layer.update(rows(1, 2, 3, 8), rows(1, 2, 3, 8))
    with pytest.raises(InputError, match=rf"^crop\({count}\): give a number from -3 to 0$"):
        layer.crop(count)


@pytest.mark.parametrize("capacity", [3, 7])
def test_grown_rows_are_those_in_use_and_zeros(capacity: int) -> None:
    rows = torch.randn(2, 1, 5, 4)
    found = grown(rows, 3, capacity)
    assert torch.equal(found[:, :, :3], rows[:, :, :3]) and not found[:, :, 3:].any()
    assert found.shape == (2, 1, capacity, 4) and found.is_contiguous()
