"""Adapters that the `peft` package itself makes, saves and applies; skipped where it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import adapters
import hf_reference
import tiny
from suffice import LLM, SamplingParams

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's own

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SOME = ["q_proj", "up_proj"]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((variant, {"target_modules": list(own)}) for variant, own in adapters.TARGETS.items()),
    ("llama", {"target_modules": "all-linear"}),
    ("llama", {"target_modules": SOME, "use_rslora": True, "r": 8}),
    (
        "llama",
        {
            "target_modules": list(adapters.TARGETS["llama"]),
            "rank_pattern": {"v_proj": 7, "layers.1.mlp.up_proj": 3},
            "alpha_pattern": {"0.self_attn.q_proj": 20},
        },
    ),
    ("llama", {"target_modules": SOME, "layers_to_transform": [0, 2], "layers_pattern": "layers"}),
    ("llama", {"target_modules": SOME, "layers_to_transform": 1}),
    ("llama", {"target_modules": SOME, "exclude_modules": ["model.layers.0.self_attn.q_proj"]}),
    ("llama", {"target_modules": r".*\.[qv]_proj", "exclude_modules": r".*layers\.1\..*"}),
]


@pytest.mark.parametrize(("variant", "fields"), CASES, ids=str)
def test_tokens_are_those_of_peft(variant: str, fields: dict[str, Any], tmp_path: Path) -> None:
    base = tiny.make(tmp_path / "base", variant, tokenizer=True)
    own = {"r": 4, "lora_alpha": 8, "fan_in_fan_out": variant == "gpt2", **fields}
    model = peft.get_peft_model(
        hf_reference.load(base, torch.float32), peft.LoraConfig(task_type="CAUSAL_LM", **own)
    ).eval()
    torch.manual_seed(0)
    for name, matrix in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(matrix, std=0.3)
    model.save_pretrained(tmp_path / "own")
    prompt = adapters.prompts(2, tiny.VOCABULARY)[1]
    expected = answered(model, prompt)
    with model.disable_adapter():
        assert answered(model, prompt) != expected
    given: tuple[dict[str, Any], ...] = (
        {"adapters": {"own": tmp_path / "own"}, "adapter": "own"},
        {"merge_adapter": tmp_path / "own"},
    )
    for options in given:
        llm = LLM(base, threads=1, dtype="float32", **options)
        (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == expected


def answered(model: Any, prompt: list[int]) -> list[int]:
    found = list(prompt)
    with torch.no_grad():
        for _ in range(GREEDY.max_tokens or 0):
            found.append(int(model(input_ids=torch.tensor([found])).logits[0, -1].argmax()))
    return found[len(prompt) :]
