"""Linear layers of transformers models in suffice's storage."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import suffice.integrations.transformers as st
import tiny
from batches import generate, prompts
from commands import Cli
from hf_reference import load
from suffice import LLM, SamplingParams
from suffice.errors import InputError
from suffice.integrations import quantized_linear
from suffice.integrations.quantized_linear import QuantizedLinear

FAMILIES = ["llama", "llama-bias", "qwen2-window", "gemma3", "opt", "opt-post"]


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(3, tiny.VOCABULARY, (6, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def gpt2() -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": tiny.VOCABULARY}
    return GPT2LMHeadModel(GPT2Config(n_positions=128, initializer_range=0.2, **sizes)).eval()


def swapped(model: Any) -> dict[str, QuantizedLinear]:
    return {n: part for n, part in model.named_modules() if isinstance(part, QuantizedLinear)}


def dense(model: Any, quantized: Any) -> Any:
    """Return the model with the dense weights that the quantized one's stand for."""
    for name, part in swapped(quantized).items():
        own, weight = model.get_submodule(name), torch.from_numpy(part.packed.unpack())
        own.weight = torch.nn.Parameter(weight if isinstance(own, torch.nn.Linear) else weight.T)
    return model


@torch.no_grad()
def distance(model: Any, other: Any, tokens: torch.Tensor) -> float:
    a, b = model(tokens).logits, other(tokens).logits
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    ("family", "quant"),
    [
        *((family, "none:dtype=float32") for family in FAMILIES),
        *((family, "kmeans:bits=4") for family in ("llama-bias", "qwen2-window", "opt-post")),
    ],
)
def test_the_product_is_that_of_the_weights_that_are_stored(
    family: str, quant: str, models: Callable[[str], Any], tokens: torch.Tensor
) -> None:
    quantized = copy.deepcopy(models(family))
    count = sum(isinstance(part, torch.nn.Linear) for part in quantized.modules())
    st.quantize(quantized, quant)
    assert len(swapped(quantized)) == count
    assert not any(isinstance(part, torch.nn.Linear) for part in quantized.modules())
    alike = dense(copy.deepcopy(models(family)), quantized)
    # inputs of 16 bits, and of 8 for the head
    assert distance(quantized, alike, tokens) < (1e-5 if quant.startswith("none") else 0.02)
    assert distance(alike, models(family), tokens) < (1e-9 if quant.startswith("none") else 0.9)


def test_an_architecture_that_the_engine_does_not_know(gpt2: Any, tokens: torch.Tensor) -> None:
    quantized = copy.deepcopy(gpt2)
    st.quantize(quantized, "kmeans")
    assert len(swapped(quantized)) == 4 * 2 + 1
    assert distance(quantized, dense(copy.deepcopy(gpt2), quantized), tokens) < 0.02
    generated = quantized.generate(tokens[:2], max_new_tokens=4, pad_token_id=0)
    assert generated.shape == (2, 44)


def test_a_calibration_brings_the_outputs_nearer(
    gpt2: Any, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_linear, "HESSIAN_BYTES", 40_000)  # two layers at a time
    without, by_text, all_at_once = (copy.deepcopy(gpt2) for _ in range(3))
    batches = [tokens[i] for i in range(len(tokens))]
    st.quantize(without, "kmeans:bits=3")
    st.quantize(by_text, "kmeans:bits=3", calibrate=batches * 2)
    assert distance(by_text, gpt2, tokens) < 0.85 * distance(without, gpt2, tokens)
    assert not any(part._forward_pre_hooks for part in by_text.modules())
    monkeypatch.setattr(quantized_linear, "HESSIAN_BYTES", 1 << 30)
    lists = [batch.tolist() for batch in batches * 2]
    st.quantize(all_at_once, "kmeans:bits=3", calibrate=lists)
    first = "transformer.h.0.attn.c_attn"  # has no layer before it that is quantized by then
    weights = [model.get_submodule(first).packed.unpack() for model in (by_text, all_at_once)]
    torch.testing.assert_close(*map(torch.from_numpy, weights))
    inputs_by_levels = copy.deepcopy(gpt2)
    st.quantize(inputs_by_levels, "kllm", calibrate=batches * 2)
    assert all(part.packed.site for name, part in swapped(inputs_by_levels).items() if "h." in name)


@pytest.mark.parametrize("family", ["llama-bias", "gemma3", "opt"])
def test_a_file_of_quantize_gives_the_tokens_of_the_engine(
    family: str, cli: Cli, tmp_path: Path
) -> None:
    folder = tiny.shallow(tmp_path / "model", family)
    (tmp_path / "text.txt").write_text("Owls look on; 0123456789 again, as they have before. " * 16)
    path, asked = tmp_path / "out.safetensors", ["--window", "40", "--limit", "2"]
    text = ["--text", str(tmp_path / "text.txt")]
    ran = cli("quantize", "-m", str(folder), *text, *asked, "-o", str(path))
    assert ran.code == 0, ran.err
    model = load(folder, torch.float32)
    before = model.get_input_embeddings().weight.clone()
    st.load_quantized(model, path)
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert not any(isinstance(part, torch.nn.Linear) for part in model.modules())
    prompt = prompts(1)["input_ids"]
    llm = LLM(str(path), kv_cache_dtype="float32")
    # The engine's embedding is of eight bits, too.
    embed = llm.runner.decoder.matrix("embed").unpack()
    model.get_input_embeddings().weight.data = torch.from_numpy(embed)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": prompt[0].tolist()}, params, use_tqdm=False)
    found = generate(model, 1, max_new_tokens=6)[0, prompt.shape[1] :].tolist()
    assert found == list(output.outputs[0].token_ids)


def test_what_cannot_be_is_one_line(
    gpt2: Any, models: Callable[[str], Any], tokens: torch.Tensor, cli: Cli, tmp_path: Path
) -> None:
    def refused(call: Callable[[], None]) -> str:
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "Did you mean 'kmeans'" in refused(lambda: st.quantize(gpt2, "kmean"))
    assert "transformers model, not Linear" in refused(
        lambda: st.quantize(torch.nn.Linear(2, 2), "int8")
    )
    assert "40 tokens; at least 256" in refused(
        lambda: st.quantize(gpt2, "kmeans", calibrate=[tokens[0]])
    )
    assert "int8 does not use" in refused(lambda: st.quantize(gpt2, "int8", calibrate=[tokens] * 2))
    assert "quant 'kmeans:act_bits=8,sites=down': layers of a transf" in refused(
        lambda: st.quantize(gpt2, "kmeans:act_bits=8,sites=down")
    )
    bad = ("some text", 5, [[]], [[0.5, 1.0]], [[1, tiny.VOCABULARY]], [[1, 2], [[3], [4, 5]]])
    for batches in bad:
        asked = f"calibrate must be batches of tokens, [B, T] or [T], below {tiny.VOCABULARY}"
        call = partial(st.quantize, gpt2, "kmeans", calibrate=batches)  # type: ignore[arg-type]
        assert refused(call).startswith(asked)
    assert "quant must be a name such as" in refused(lambda: st.quantize(gpt2, 4))  # type: ignore[arg-type]
    broken = copy.deepcopy(gpt2)
    broken.transformer.h[1].mlp.c_fc.weight.data[0, 0] = torch.nan
    found = refused(lambda: st.quantize(broken, "kmeans"))
    assert found.startswith("transformer.h.1.mlp.c_fc: a weight has NaN")
    assert not swapped(broken) and not swapped(gpt2), "something was replaced all the same"
    st.quantize(broken := copy.deepcopy(gpt2), "int8")
    assert "quantized already" in refused(lambda: st.quantize(broken, "int8"))
    assert "no gradient" in refused(lambda: broken(tokens).logits)
    assert "cannot be saved with its model" in refused(lambda: broken.save_pretrained(tmp_path))
    folder = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    (text := tmp_path / "text.txt").write_text("0123456789 " * 80)
    path = tmp_path / "out.safetensors"
    asked = ["--text", str(text), "--window", "40", "--limit", "2", "-o", str(path)]
    assert cli("quantize", "-m", str(folder), *asked).code == 0
    other = models("llama")
    assert "is another model" in refused(lambda: st.load_quantized(other, path))
    other.name_or_path = ""
    assert "give checkpoint=" in refused(lambda: st.load_quantized(other, path))
    small = load(tiny.make(tmp_path / "small", "llama", num_hidden_layers=1), torch.float32)
    fits = refused(lambda: st.load_quantized(small, path, checkpoint=folder))
    assert fits.endswith("layers.1.self_attn.q_proj [64, 64], which LlamaForCausalLM has not")
    joined = refused(lambda: st.load_quantized(gpt2, path, checkpoint=folder))
    assert joined.startswith("GPT2LMHeadModel has q, k, v in one layer, a file of `suffice")
    strange = copy.deepcopy(small)
    strange.__class__ = type("MambaForCausalLM", (type(small),), {})
    unknown = refused(lambda: st.load_quantized(strange, path, checkpoint=folder))
    assert unknown.startswith("unknown architecture 'MambaForCausalLM'")
    assert not swapped(small) and not swapped(gpt2) and not swapped(other)
