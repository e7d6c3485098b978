"""Models of transformers with suffice's attention and cache: the same tokens, and undone after.

Also tests masks.py, native_cache.py and requests.py.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AttentionInterface,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)

import suffice.integrations.transformers as st
import tiny
from batches import GREEDY, NEW_TOKENS, PADDING, generate, prompts
from golden import model_file
from hf_reference import as_cache, cache_of, load
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.families.llama import WEIGHTS
from suffice.errors import InputError
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder

FAMILIES = ["llama", "mistral", "qwen2-window", "qwen3", "gemma3", "opt"]
EXACT = [
    "exact",
    "aet:keys=all,values=0",
    "art:change=0",
    "certified:eps=0",
    "skip_softmax:factor=0",
]
LOSSY = [
    "aet:keys=0.5,globals=16,locals=8",
    "art:change=0.5,angle=0.5,patience=1,block=16",
    "certified:eps=0.3",
    "skip_softmax:factor=20,block=16",
]
pytestmark = pytest.mark.usefixtures("one_thread")


_expected: dict[str, Any] = {}  # what transformers generates, by family


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *itertools.product(FAMILIES[:1], EXACT),
        *itertools.product(FAMILIES[1:], EXACT[:1]),
        *zip(FAMILIES[1:], itertools.cycle(EXACT[1:]), strict=False),
    ],
)
def test_at_its_exact_limit_a_technique_gives_the_tokens_of_transformers(
    family: str, attention: str, models: Callable[[str], Any]
) -> None:
    model, all_of_it = models(family), {"return_dict_in_generate": True, "output_logits": True}
    if family not in _expected:
        _expected[family] = generate(model, **all_of_it)
    expected = _expected[family]
    with st.enable(model, attention=attention) as enabled:
        actual: Any = generate(model, **all_of_it)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert enabled.trace is not None and enabled.trace.steps == NEW_TOKENS - 1


def test_a_copy_does_not_generate_with_the_weights_of_the_original(
    models: Callable[[str], Any],
) -> None:
    model = models("llama")
    with st.enable(model) as enabled:
        with pytest.raises(InputError) as error:
            copy.deepcopy(model)
        assert str(error.value) == "LlamaForCausalLM is enabled: disable it before it is copied"
        assert generate(model).shape[1] > NEW_TOKENS and enabled.trace is not None
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(twin.lm_head.weight)
    with st.enable(twin):
        assert not torch.equal(generate(twin), generate(model))


@pytest.mark.parametrize("attention", LOSSY)
def test_with_thresholds_the_tokens_are_those_of_the_engine(attention: str, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "llama", tokenizer=True)
    model, prompt, count = load(folder, torch.float32), prompts(1)["input_ids"], 90
    llm = LLM(folder, dtype="float32", threads=1, attention=attention)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": prompt[0].tolist()}, params)
    with st.enable(model, attention=attention) as enabled:
        tokens = generate(model, 1, max_new_tokens=count)
    assert tokens[0, prompt.shape[1] :].tolist() == list(output.outputs[0].token_ids)
    trace, theirs = enabled.trace, llm.runner.trace
    assert trace is not None and trace.value_rows_read < trace.rows_held, "everything was read"
    close = {
        name: pytest.approx(theirs.plain()[name], abs=1e-5) for name in ("missing", "missing_mean")
    }
    same = {"weight_bytes_read": 0, **close}
    assert trace.plain() == theirs.plain() | same


@pytest.mark.parametrize("attention", LOSSY)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_padded_request_gives_the_tokens_that_it_gives_alone(
    family: str, attention: str, models: Callable[[str], Any]
) -> None:
    model = models(family)
    with st.enable(model, attention=attention):
        together = generate(model)
        for row, padding in enumerate(PADDING):
            prompt = prompts(3)["input_ids"][row : row + 1, padding:]
            alone = model.generate(prompt, max_new_tokens=NEW_TOKENS, **GREEDY)
            assert torch.equal(together[row, padding:], alone[0])


def test_padding_is_not_stored(models: Callable[[str], Any]) -> None:
    model = models("llama")
    with st.enable(model) as enabled:
        cache = enabled.new_cache()
        generate(model, **as_cache(cache), max_new_tokens=2)
    lengths = [each.length + each.tentative for each in cache.requests.caches]
    assert lengths == [27 + 1 - padding for padding in PADDING]
    assert cache.get_seq_length() == 28 and cache.bytes > 0
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.bytes == 0


@pytest.mark.parametrize(
    ("family", "attention"),
    [*itertools.product(["llama"], ["exact", *LOSSY]), ("gemma3", "exact"), ("gemma3", LOSSY[0])],
)
def test_drafts_change_nothing_not_even_what_was_learnt(
    family: str, attention: str, models: Callable[[str], Any]
) -> None:
    model = models(family)
    assistant = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():  # so that it is sometimes wrong
        for weight in assistant.parameters():
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=noise)
    with st.enable(model, attention=attention) as enabled:
        plain = generate(model, 1, max_new_tokens=30)
        cache = enabled.new_cache()
        drafts: dict[str, Any] = {"assistant_model": assistant, "max_new_tokens": 30}
        drafted = generate(model, 1, **drafts, **as_cache(cache))
    assert torch.equal(drafted, plain)
    assert cache.trace is not None and cache.trace.steps < 29, "none was accepted"
    assert cache.trace.rows_held > 0


@pytest.mark.parametrize("family", ["llama", "mistral", "opt"])
def test_beam_search(family: str, models: Callable[[str], Any]) -> None:
    model = models(family)
    expected = generate(model, num_beams=3)
    with st.enable(model):
        assert torch.equal(generate(model, num_beams=3), expected)


@pytest.mark.parametrize("second", [1, 5, 40])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_chunk_after_a_prompt_gives_the_logits_of_transformers(
    family: str, second: int, models: Callable[[str], Any]
) -> None:
    """Some tokens are decoded natively, 40 are a second prompt; the batch is padded in both."""
    model = models(family)
    first, more = prompts(3), torch.randint(3, 200, (3, second))
    mask = torch.ones(3, second, dtype=torch.long)
    mask[1, : second // 2] = 0
    if family == "gemma3":
        mask[:] = 1  # a window with padding in it is refused
    whole = torch.cat([first["attention_mask"], mask], 1)
    tail = torch.full((3, 1), 7)
    whole_after = torch.cat([whole, torch.ones(3, 1, dtype=torch.long)], 1)

    def run() -> torch.Tensor:
        with torch.no_grad():
            past = cache_of(model(**first))
            middle = model(more, attention_mask=whole, **as_cache(past))
            after = model(tail, attention_mask=whole_after, **as_cache(past))
        assert type(past) is type(cache_of(middle))
        return torch.cat([middle.logits * mask[:, :, None], after.logits], 1)

    expected = run()
    with st.enable(model):
        actual = run()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_undone_the_model_is_as_it_was(models: Callable[[str], Any]) -> None:
    model = models("gemma3")
    config, names = copy.deepcopy(model.config.to_dict()), set(vars(model))
    with torch.no_grad():
        logits = model(**prompts(3)).logits
    table = set(AttentionInterface().valid_keys())
    st.enable(model, attention="aet:keys=0.5")
    assert model.config._attn_implementation != "sdpa"
    generate(model)
    st.disable(model)
    assert model.config.to_dict() == config and set(vars(model)) == names
    assert set(AttentionInterface().valid_keys()) == table
    assert not any(part._forward_pre_hooks for part in model.modules())
    with torch.no_grad():
        output = model(**prompts(3))
    assert torch.equal(output.logits, logits) and isinstance(cache_of(output), DynamicCache)


def test_an_exception_undoes_too(models: Callable[[str], Any]) -> None:
    model = models("llama")
    with pytest.raises(ZeroDivisionError), st.enable(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa" and "generate" not in vars(model)


def test_another_model_with_the_same_configuration_is_left_alone() -> None:
    shared = LlamaConfig(**tiny.VARIANTS["llama"][1], attn_implementation="sdpa")
    torch.manual_seed(0)
    one, other = LlamaForCausalLM(shared).eval(), LlamaForCausalLM(shared).eval()
    expected = generate(other)
    with st.enable(one, attention="aet:keys=0.1"):
        assert torch.equal(generate(other), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "arts"}, "unknown attention 'arts'. Did you mean 'art'?"),
        ({"attention": 3}, "attention=3: must be a technique or its name. Known: aet, art,"),
        ({"policy": "snapvk"}, "unknown policy 'snapvk'. Did you mean 'snapkv'?"),
        ({"growth": "bcm"}, "unknown growth 'bcm'. Did you mean 'bmc'?"),
        ({"limit": 0}, "limit=0 must be a whole number of at least 1 row"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str, models: Callable[[str], Any]) -> None:
    model = models("llama")
    with pytest.raises(InputError) as error:
        st.enable(model, **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert model.config._attn_implementation == "sdpa"


def test_what_is_no_model_or_enabled_or_not_is_refused(models: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match=r"^model must be a transformers model, not Linear$"):
        st.enable(torch.nn.Linear(2, 2))
    model = models("llama")
    with pytest.raises(InputError, match=r"^LlamaForCausalLM is not enabled: there is nothing to"):
        st.disable(model)
    with st.enable(model), pytest.raises(InputError, match=r"^LlamaForCausalLM is enabled already"):
        st.enable(model)


def test_uses_that_cannot_be_honoured_are_refused(models: Callable[[str], Any]) -> None:
    model = models("llama")
    one = prompts(1)
    with st.enable(model, limit=40) as enabled, torch.no_grad():
        with pytest.raises(InputError, match=r"^use_cache=False: an enabled model decodes with"):
            generate(model, use_cache=False)
        with pytest.raises(InputError, match=r"^(cache|past_key_values) is a DynamicCache: "):
            generate(model, **as_cache(DynamicCache()))
        with pytest.raises(InputError, match=r"^41 tokens exceed the context length of 40$"):
            generate(model, 1, max_new_tokens=20)
        past = cache_of(model(**one))
        with pytest.raises(InputError, match=r"^crop\(1\): give a number from -27 to 0$"):
            past.crop(1)
        holes = torch.ones(1, 1, 1, 28, dtype=torch.bool)
        holes[..., 3] = False
        with pytest.raises(InputError, match=r"^attention_mask hides other tokens than padding"):
            model(one["input_ids"][:, :1], attention_mask=holes, **as_cache(past))
        with pytest.raises(InputError, match=r"^a batch of 2: the cache holds 1 requests$"):
            model(torch.ones(2, 1, dtype=torch.long), **as_cache(past))
        past = enabled.new_cache()
        with pytest.raises(InputError, match=r"^attention_mask of shape \[1, 1, 2, 2\] and torch."):
            model(one["input_ids"][:, :2], attention_mask=torch.zeros(1, 1, 2, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 8}, "head_size=8 must be a multiple of 16 up to 512"),
        ({}, "type of keys and values"),
    ],
)
def test_models_that_cannot_be_served_are_refused(change: dict[str, Any], message: str) -> None:
    fields = tiny.VARIANTS["llama"][1] | change
    model = LlamaForCausalLM(LlamaConfig(**fields)).eval()
    model = model if change else model.double()
    with st.enable(model), pytest.raises(InputError, match=message):
        generate(model)


def of_file(path: Path) -> LlamaForCausalLM:
    """Return the model of a GGUF file of the Llama family; transformers reads it much slower."""
    checkpoint = open_checkpoint(path)
    own = checkpoint.config
    config = LlamaConfig(
        vocab_size=own.vocab,
        hidden_size=own.width,
        intermediate_size=own.mlp_width,
        num_hidden_layers=len(own.layers),
        num_attention_heads=own.heads,
        num_key_value_heads=own.kv_heads,
        rms_norm_eps=own.norm_eps,
        rope_theta=own.ropes[0].theta,
        tie_word_embeddings=own.tied,
        attn_implementation="sdpa",
    )
    decoder, state = TorchDecoder.from_checkpoint(checkpoint, NoQuant("float32")), {}
    for name, weight in decoder.weights.items():
        place, _, matrix = name.removeprefix("layers.").partition(".")
        full = WEIGHTS[f"layers.{matrix}" if matrix else name].format(i=place)
        dense = weight if isinstance(weight, np.ndarray) else unpack(weight)
        state[f"{full}.weight"] = torch.from_numpy(dense)
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32
    )
    return model.eval()


@pytest.mark.model
def test_a_real_model_generates_what_it_does_without() -> None:
    path = model_file("smollm2-135m")
    if path is None:
        pytest.skip("no model: run `suffice pull smollm2-135m`")
    model = of_file(path)
    tokens = torch.randint(20, 4000, (2, 24), generator=torch.Generator().manual_seed(3))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    inputs["attention_mask"][1, :9] = 0
    expected = model.generate(**inputs, max_new_tokens=4, **GREEDY)
    for attention in ("exact", "certified:eps=0", "aet:keys=all,values=0"):
        with st.enable(model, attention=attention):
            found = model.generate(**inputs, max_new_tokens=4, **GREEDY)
        assert torch.equal(found, expected), attention
