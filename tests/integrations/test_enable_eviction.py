"""Eviction in models of transformers: memory comes back, and what needed the tokens is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import suffice.integrations.transformers as st
import tiny
from batches import GREEDY, NEW_TOKENS, generate, prompts
from hf_reference import as_cache, cache_of, load
from suffice.attention import calibration
from suffice.errors import InputError

LONG = 900
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> Any:
    """A model for long prompts."""
    fields = tiny.VARIANTS["llama"][1] | {"max_position_embeddings": 2048}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**fields)).eval()


@pytest.fixture(scope="module")
def small(checkpoints: Callable[[str], Path]) -> Any:
    return load(checkpoints("llama"), torch.float32)


def step(model: Any, tokens: torch.Tensor, past: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(tokens, **as_cache(past)).logits
    return logits


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ("streaming:budget=100", 100),
        ("snapkv:budget=100", 100),
        ("snapkv:0.1", 90),
        ("pyramidkv:budget=140,window=32", 243),
        ("h2o:budget=100", 100),
    ],
)
def test_eviction_gives_memory_back_at_the_end_of_the_prompt(
    policy: str, most: int, model: Any
) -> None:
    prompt = torch.randint(3, 200, (2, LONG), generator=torch.Generator().manual_seed(0))
    sizes = {}
    for name in ("full", policy):
        with st.enable(model, policy=name) as enabled:
            cache = enabled.new_cache()
            step(model, prompt, cache)
            sizes[name] = cache.bytes
        assert cache.get_seq_length() == LONG, "positions are those of the text"
    for each in cache.requests.caches:
        assert each.length == LONG
        assert all(each.held(layer) <= most for layer in range(each.layers))
    assert sizes[policy] < 0.6 * sizes["full"]


@pytest.mark.parametrize("policy", ["streaming:budget=60", "h2o:budget=60"])
def test_policies_that_go_on_evicting_need_no_more_memory_for_more_tokens(
    policy: str, model: Any
) -> None:
    with st.enable(model, policy=policy) as enabled:
        cache = enabled.new_cache()
        generate(model, 2, 90, max_new_tokens=60, **as_cache(cache))
        before = cache.bytes
        assert cache.get_seq_length() == 149
        later = torch.full((2, 1), 7)
        for _ in range(150):
            step(model, later, cache)
    assert cache.bytes <= before + cache.requests.caches[0].row_bytes * 2 * 64
    assert max(each.held(0) for each in cache.requests.caches) < 60 + 128


@pytest.mark.parametrize("policy", ["snapkv:0.5,window=8", "streaming:budget=24", "h2o:budget=24"])
def test_a_prompt_that_builds_on_evicted_tokens_is_refused(policy: str, small: Any) -> None:
    name = policy.partition(":")[0]
    message = (
        f"^policy '{name}' evicts tokens that the next prompt of a chat builds on: give it "
        "rank_only=true, which only orders them$"
    )
    with st.enable(small, policy=policy):
        with torch.no_grad():
            past = cache_of(small(**prompts(2, 60)))
        with pytest.raises(InputError, match=message):
            step(small, torch.full((2, 40), 5), past)
        expected = step(small, torch.full((2, 1), 5), past)
        for more in (1, 40):  # one token, too, is another prompt
            longer = torch.full((2, 61 + more), 5)
            with pytest.raises(InputError, match=message):
                small.generate(longer, **as_cache(past), **GREEDY)
    assert bool(torch.isfinite(expected).all()), "the cache is as it was"


@pytest.mark.parametrize("policy", ["streaming", "snapkv", "h2o", "quest"])
def test_with_keep_a_second_prompt_loses_nothing(policy: str, small: Any) -> None:
    def run() -> torch.Tensor:
        with torch.no_grad():
            past = cache_of(small(**prompts(3, 30)))
            mask = torch.cat([prompts(3, 30)["attention_mask"], torch.ones(3, 40).long()], 1)
            more = torch.randint(3, 200, (3, 40), generator=torch.Generator().manual_seed(2))
            second = small(more, attention_mask=mask, **as_cache(past)).logits
            mask = torch.cat([mask, torch.ones(3, 1).long()], 1)
            after = small(more[:, :1], attention_mask=mask, **as_cache(past)).logits
        return torch.cat([second, after], 1)

    expected = run()
    with st.enable(small, policy=f"{policy}:rank_only=true"):
        actual = run()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_some_drafts_over_what_is_left_may_be_taken_back_but_not_the_prompt(small: Any) -> None:
    with st.enable(small, policy="snapkv:0.5,window=8") as enabled:
        past, drafts = enabled.new_cache(), torch.tensor([[5, 6, 7]])
        step(small, prompts(1, 60)["input_ids"], past)
        first = step(small, drafts, past)
        past.crop(-2)
        again = step(small, drafts[:, 1:], past)
        with pytest.raises(InputError, match=r"^cannot truncate to 59 tokens: some before 60 were"):
            past.crop(-4)
        assert past.get_seq_length() == 63
        past.crop(-3)
    torch.testing.assert_close(again, first[:, 1:], rtol=1e-5, atol=1e-5)


def test_beams_fork_what_a_policy_has_left(small: Any) -> None:
    with st.enable(small, policy="h2o:0.5"):
        greedy = generate(small, 2, 60)
        beams = generate(small, 2, 60, num_beams=3, num_return_sequences=3)
    with st.enable(small, policy="h2o:budget=999"):
        whole = generate(small, 2, 60, num_beams=3, num_return_sequences=3)
    assert beams.shape == (6, greedy.shape[1])
    expected = generate(small, 2, 60, num_beams=3, num_return_sequences=3)
    assert torch.equal(whole, expected) and not torch.equal(beams, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "snapvk"}, "unknown policy 'snapvk'. Did you mean 'snapkv'?"),
        ({"policy": "snapkv:budget=3"}, "snapkv: budget=3: must be at least 32 tokens, the window"),
        ({"policy": 0.8}, "policy=0.8: must be a technique or its name. Known: full, h2o,"),
        (
            {"policy": "quest", "attention": "certified"},
            "policy 'quest' with attention 'certified'",
        ),
        ({"policy": "h2o", "attention": "aet"}, "policy 'h2o' sums the weights of all tokens,"),
        ({"softmax": "exaq"}, "softmax=exaq: needs a calibration of the model: make one with"),
        ({"softmax": "exaq:5"}, "exaq: bits=5: must be 2, 3 or 4"),
        (
            {"softmax": "exaq:prefill=true", "policy": "h2o"},
            "softmax=exaq:prefill=true contradicts policy=h2o",
        ),
        ({"calibration": "none.json"}, "calibration none.json: cannot be read: No such file"),
    ],
)
def test_what_the_engine_refuses_is_refused(
    options: dict[str, Any], message: str, small: Any
) -> None:
    with pytest.raises(InputError) as error:
        st.enable(small, **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert small.config._attn_implementation == "sdpa"


def found(**changes: Any) -> calibration.Calibration:
    layers = (calibration.LayerInputs(2.0, -20.0),) * 3
    fields = {"name": "c.json", "model": "m", "model_hash": "ab12", "heads": 4, "layers": layers}
    return calibration.Calibration(**(fields | {"codebooks": {}, "clips": {}} | changes))


def test_a_calibration_must_be_of_the_model(
    small: Any, model: Any, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    from suffice.checkpoints.files import fingerprint

    folder = checkpoints("llama")
    with pytest.raises(
        InputError, match=r"^calibration c.json: is of m with hash ab12, but .*llama"
    ):
        st.enable(small, softmax="exaq", calibration=found())
    with pytest.raises(
        InputError, match=r"^calibration c.json: LlamaForCausalLM does not know its"
    ):
        st.enable(model, softmax="exaq", calibration=found())
    own = found(model_hash=fingerprint(folder), heads=8)
    with pytest.raises(
        InputError, match=r"^calibration c.json: is of 3 layers with 8 heads; Llama"
    ):
        st.enable(small, softmax="exaq", calibration=own)
    with pytest.raises(InputError, match=r"has no config.json, so it is not a Hugging Face check"):
        st.enable(small, softmax="exaq", calibration=own, checkpoint=tmp_path)
    own = found(model_hash=fingerprint(folder))
    with st.enable(model, softmax="exaq", calibration=own, checkpoint=folder):
        assert generate(model).shape == (3, 27 + NEW_TOKENS)
    with pytest.raises(InputError, match=r"^calibration=c.json: .*attention=exact need none$"):
        st.enable(small, calibration=own)


def test_uses_that_a_policy_cannot_honour_are_refused(small: Any) -> None:
    with st.enable(small, policy="snapkv:0.5,window=8") as enabled:
        for option in ({"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 16}):
            with pytest.raises(
                InputError, match=rf"^{next(iter(option))} with policy 'snapkv', whi"
            ):
                generate(small, 1, **option)
        past = enabled.new_cache()
        step(small, prompts(1, 40)["input_ids"], past)
        near = torch.zeros(1, 1, 1, 41, dtype=torch.bool)
        near[..., -9:] = True
        with (
            pytest.raises(
                InputError, match=r"^attention_mask shows layer 0 a window of 9: the pol"
            ),
            torch.no_grad(),
        ):
            small(torch.tensor([[5]]), attention_mask=near, **as_cache(past))
    with st.enable(small, policy="quest:budget=48"):
        drafted = generate(small, 1, 60, prompt_lookup_num_tokens=3)
        assert torch.equal(drafted, generate(small, 1, 60))


def test_a_cache_of_an_interrupted_pass_is_refused_until_it_is_reset(small: Any) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    with st.enable(small) as enabled:
        past, prompt = enabled.new_cache(), prompts(1)["input_ids"]
        expected = step(small, prompt, enabled.new_cache())
        hook = small.model.layers[1].mlp.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            step(small, prompt, past)
        hook.remove()
        with pytest.raises(InputError, match=r"^the last forward pass was interrupted: its cache"):
            step(small, prompt[:, :1], past)
        past.reset()
        assert torch.equal(step(small, prompt, past), expected)
