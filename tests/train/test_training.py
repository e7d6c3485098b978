"""Training of a head: the same weights however it was interrupted, and a head that drafts better.

Tests answers.py, job.py, own_prompts.py and recipe.py.
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import suffice.train.job as job
import tiny
from engines import sharing
from suffice import LLM, SamplingParams
from suffice.checkpoints.draft_heads import default_layers, open_head
from suffice.errors import InputError
from suffice.train.answers import Answers, Text
from suffice.train.own_prompts import own_prompts
from suffice.train.recipe import (
    KEPT_UPDATES,
    Recipe,
    described,
    drafted_tokens,
    fused_layers,
    head_config,
)
from trained_heads import RECIPE, training_of

SHORT = Recipe(draft_vocab=96, steps=3, batch=2, rate=3e-3, epochs=2)
PROMPTS = [[(11 * i + 17 * number) % 190 + 3 for i in range(20)] for number in range(6)]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_run_that_is_killed_gives_the_same_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left between any two updates, also those whose state is not stored."""
    monkeypatch.setattr(job, "_KEPT", 3)
    whole = training_of(load(model), PROMPTS, tmp_path / "whole", SHORT, 50)
    updates = whole.begin()
    for _ in whole.run(100):
        pass
    whole.write("float32")
    measured = whole.measure()
    draw, starts = random.Random(0), 0
    done = 0
    while done < updates:
        part = training_of(load(model), PROMPTS, tmp_path / "parts", SHORT, 50)
        part.begin()
        starts += 1
        last = min(part.done + draw.randint(1, 5), updates)
        for step in part.run(4):
            done = step.done
            if done == last:
                break
    part.write("float32")
    assert starts > 3
    assert part.measure() == measured
    one, two = weights_of(tmp_path / "whole" / "head"), weights_of(tmp_path / "parts" / "head")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_answers_go_on_after_the_last_whole_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffice.train.answers.TOGETHER", 2)

    def answers(name: str) -> Answers:
        return Answers(load(model), PROMPTS[:3], tmp_path / name, 40, 0.8, seed=3, own=3)

    assert list(answers("whole").run()) == [0, 2, 4, 6]
    text = (tmp_path / "whole").read_bytes()
    for cut in (1, len(text) // 2, text.index(b"\n") + 1, len(text) - 1):
        (tmp_path / "part").write_bytes(text[:cut])
        found = list(answers("part").run())
        assert found[0] == text[:cut].count(b"\n") and found[-1] == 6
        assert (tmp_path / "part").read_bytes() == text
    texts = answers("whole").texts()
    for row in texts:
        assert row.prompt <= 20 and row.prompt < len(row.tokens) <= 40
    assert [row.tokens[: row.prompt] for row in texts[:3]] == PROMPTS[:3]


def test_own_prompts_are_what_the_model_says_in_a_users_turn(model: Path) -> None:
    llm = load(model)
    found = own_prompts(llm, [7, 8, 7])
    assert found[0] == found[2] != found[1]
    before, after = llm.chat_text([{"role": "user", "content": "what"}]).split("what")
    for seed, tokens in zip((7, 8), found, strict=False):
        drawn = llm.generate(
            [llm.tokenizer.encode(before, special=False)],
            SamplingParams(temperature=1, top_p=0.98, max_tokens=160, seed=seed),
        )
        text = before + drawn[0].outputs[0].text.strip() + after
        assert tokens == llm.tokenizer.encode(text, special=False)


@pytest.mark.parametrize("shown", ["nothing of it", "{}", "before {:>0}"])
def test_templates_in_which_no_user_can_begin_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    def chat_text(self: LLM, messages: list[dict[str, str]]) -> str:
        return shown.format(
            messages[0]["content"].upper() if ":" in shown else messages[0]["content"]
        )

    monkeypatch.setattr(LLM, "chat_text", chat_text)
    with pytest.raises(InputError, match="must show a user's text as it is, after something else"):
        own_prompts(load(model), [0])


def test_the_first_draft_is_trained_alone_at_first() -> None:
    assert [SHORT.drafts(update, 10) for update in range(10)] == [1] * 6 + [2, 2, 3, 3]
    one = dataclasses.replace(SHORT, steps=1)
    assert {one.drafts(update, 10) for update in range(10)} == {1}


def test_long_prompts_keep_their_ends(model: Path, tmp_path: Path) -> None:
    answers = Answers(load(model), PROMPTS[:2], tmp_path / "a", 16, 0.0, 0)
    assert list(answers.run())[-1] == 2
    for row, prompt in zip(answers.texts(), PROMPTS, strict=False):
        assert row.tokens[: row.prompt] == prompt[-8:] and len(row.tokens) <= 16


def test_training_raises_acceptance(model: Path, tmp_path: Path) -> None:
    """What is measured in training is what the engine accepts of the written head."""
    training = training_of(load(model), PROMPTS, tmp_path, RECIPE, 60)
    training.begin()
    before = training.measure(training=True)
    losses = [step.loss for step in training.run(10**6)]
    after = training.measure(training=True)
    assert losses[-1] < losses[0] - 1
    assert before.tokens_per_step < 1.5 < 2.5 < after.tokens_per_step
    training.write("float32")
    method = {"method": "eagle3", "model": str(tmp_path / "head"), "adaptive": False}
    method["quantization"] = "file"
    llm = load(model, speculative_config=method)
    plain = load(model)
    texts = [training._texts[at] for at in training._training[: len(training._held_out)]]
    steps = tokens = 0
    for text in texts:
        params = dataclasses.replace(GREEDY, max_tokens=len(text.tokens) - text.prompt)
        found, wanted = (
            each.generate([text.tokens[: text.prompt]], params)[0] for each in (llm, plain)
        )
        assert found.outputs == wanted.outputs
        steps += found.speculation.steps
        tokens += len(found.outputs[0].token_ids) - 1
    assert tokens / steps == pytest.approx(after.tokens_per_step, rel=0.05)


def test_the_folder_is_as_others_load_it(model: Path, tmp_path: Path) -> None:
    """Names, types and fields of SafeAILab's heads, which SGLang and vLLM read."""
    training = training_of(load(model), PROMPTS, tmp_path, dataclasses.replace(SHORT, epochs=1), 50)
    training.begin()
    training.write("bfloat16")
    stored = weights_of(tmp_path / "head")
    layer = ("q_proj", "k_proj", "v_proj", "o_proj")
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    assert set(stored) == {
        *("fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"),
        *(f"midlayer.self_attn.{name}.weight" for name in layer),
        *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"midlayer.{name}.weight" for name in norms),
    }
    d2t, t2d = stored["d2t"], stored["t2d"]
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool
    tokens = d2t + torch.arange(len(d2t))  # as SGLang and vLLM add it
    assert torch.equal(t2d.nonzero()[:, 0], tokens) and len(tokens) == 96
    assert stored["fc.weight"].dtype == torch.bfloat16
    assert stored["midlayer.self_attn.q_proj.weight"].shape == (64, 128)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["draft_vocab_size"], config["vocab_size"]) == (96, 320)
    opened = open_head(str(tmp_path / "head"), load(model).runner.decoder.config)  # type: ignore
    assert opened.layers == training.layers
    np.testing.assert_array_equal(opened.tokens, training.tokens)
    training.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_a_state_of_another_training_is_refused(model: Path, tmp_path: Path) -> None:
    first = training_of(load(model), PROMPTS, tmp_path, dataclasses.replace(SHORT, epochs=1), 50)
    first.begin()
    for _ in first.run(100):
        pass
    other = training_of(load(model), PROMPTS, tmp_path, dataclasses.replace(SHORT, epochs=3), 50)
    with pytest.raises(InputError, match="is of another training: remove it, or give another -o"):
        other.begin()


def test_what_is_drafted_is_what_answers_say_most() -> None:
    texts = [Text([9, 9, 9, 4, 4, 7, 2], 3), Text([1, 7, 7], 1)]
    assert drafted_tokens(texts, 12, 2).tolist() == [4, 7]
    assert drafted_tokens(texts, 12, 5).tolist() == [0, 1, 2, 4, 7]


def test_texts_held_out_are_not_trained_on() -> None:
    texts = [Text(list(range(20)), 5)] * 40 + [Text([1, 2, 3], 2), Text([1] * 20, 20)]
    training, held_out = SHORT.parted(texts)
    assert len(held_out) == 2 and sorted([*training, *held_out]) == list(range(40))
    with pytest.raises(InputError, match="at least 2 are needed"):
        SHORT.parted(texts[:1])


def test_passes_over_the_same_texts_are_neighbours() -> None:
    """A text is run by the model once in an epoch: between its passes fewer are seen than kept."""
    recipe = dataclasses.replace(SHORT, epochs=2, passes=3)
    texts = list(range(100, 150))
    batches = recipe.batches(texts)
    seen = [text for batch in batches for text in batch]
    assert all(0 < len(batch) <= recipe.batch for batch in batches)
    assert len(seen) == 2 * 3 * len(texts)
    for part in (seen[:150], seen[150:]):
        assert sorted(part) == sorted(3 * texts)
        for text in texts:
            first, last = part.index(text), len(part) - 1 - part[::-1].index(text)
            assert len({*part[first : last + 1]}) <= recipe.batch * KEPT_UPDATES
    assert seen[:150] != seen[150:] and seen[:32] != seen[32:64]
    assert recipe.batches(texts) == batches


def test_the_model_runs_a_text_once_for_all_passes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffice.train.recipe.KEPT_UPDATES", 1)
    monkeypatch.setattr(job, "KEPT_UPDATES", 1)
    recipe = dataclasses.replace(SHORT, epochs=1)
    training = training_of(load(model), PROMPTS, tmp_path, recipe, 50)
    training.begin()
    ran: list[Text] = []
    states = training._states

    def noted(text: Text, **how: Any) -> tuple[torch.Tensor, np.ndarray]:
        ran.append(text)
        return states(text, **how)

    monkeypatch.setattr(training, "_states", noted)
    updates = len([*training.run(10**6)])
    texts = [training._texts[at] for at in training._training]
    assert updates == 3 * 3  # groups of 2, 2 and 1 of 5 texts
    measured = [training._texts[at] for at in training._held_out]
    assert sorted(ran) == sorted([*texts, *measured])


def test_layers_that_are_fused() -> None:
    """Those that SGLang and vLLM take by themselves, unless the model is too small for them."""
    assert fused_layers(32) == default_layers(32) == (2, 16, 29)
    assert fused_layers(30) == (2, 15, 27)
    assert fused_layers(3) == (0, 2, 3)
    assert fused_layers(6) == (0, 3, 6)


def test_heads_of_models_of_other_forms(tmp_path: Path) -> None:
    """Joint rows, experts and MLPs without gates: the head has usual ones."""
    for variant in ("deepseek-v3", "olmoe", "opt", "gemma3"):
        config = load(tiny.make(tmp_path / variant, variant, tokenizer=True)).runner.decoder.config  # type: ignore
        found = head_config(config, 64)
        assert found.gated and not found.experts and not found.latent
        assert found.width == config.width and found.mlp_width % 16 == 0
        fields: dict[str, Any] = described(found, default_layers(30), 30, "bfloat16")
        assert "eagle_config" not in fields
        assert "eagle_config" in described(found, (0, 1, 2), 30, "bfloat16")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("draft_vocab", 0),
        ("steps", 0),
        ("batch", -1),
        ("passes", 0),
        ("seed", -1),
        ("draft_vocab", 15),
        ("rate", 2.0),
        ("rate", float("inf")),
        ("epochs", 0),
        ("rate", 0),
    ],
)
def test_recipes_that_are_refused(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{field}={value}: must be"):
        dataclasses.replace(SHORT, **{field: value})
