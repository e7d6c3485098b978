"""Modules of the model's own files draft: their logits, and texts. Tests mtp.py, predictors.py.

Also tests by_head.py.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hf_reference
import predictors
import tiny
from engines import check_turns, sharing
from oracle import assert_matches
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack_rows
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.quantize.torch_layers import rms_norm

pytestmark = pytest.mark.filterwarnings("ignore::suffice.errors.SufficeWarning")
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
PROMPTS = [[(7 * i + 13 * number) % 190 + 3 for i in range(45)] for number in range(3)]
load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module", params=predictors.MADE)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return predictors.make(tmp_path_factory.mktemp("model"), request.param)


def drafting(model: Path, **options: Any) -> LLM:
    method = {
        "method": "mtp",
        "adaptive": False,
        "num_speculative_tokens": 3,
        "quantization": "file",
    }
    return load(model, speculative_config=method | options.pop("speculation", {}), **options)


class Reference:
    """The module in transformers: its layer as a model of one, after the parts before it."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._model = hf_reference.load(folder / "alone", dtype)
        parts = load_file(folder / "alone" / "parts.safetensors")
        self._parts = {name: each.to(dtype) for name, each in parts.items()}
        config = self._model.config
        self._eps, self._qwen = config.rms_norm_eps, "qwen" in config.model_type
        self._model.model.norm.register_forward_pre_hook(self._keep)

    def _keep(self, module: Any, given: Any) -> None:
        self._left = given[0]

    def drafts(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return the logits after each token from that of the last of `hidden` on, [steps, V]."""
        found = []
        for at in range(len(hidden), len(embedded) + 1):
            pair = torch.cat(
                (self._norm("embed_norm", embedded[:at]), self._norm("hidden_norm", hidden)), dim=-1
            )
            with torch.no_grad():
                out = self._model(inputs_embeds=(pair @ self._parts["join"].T)[None])
            found.append(out.logits[0, -1])
            left = self._left[0, -1:]
            own = rms_norm(left, 1 + self._parts["final_norm"], self._eps) if self._qwen else left
            hidden = torch.cat((hidden, own))
        return torch.stack(found)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._parts[name] + float(self._qwen), self._eps)


def test_drafts_have_the_logits_of_the_module(model: Path) -> None:
    llm = drafting(model)
    runner, text = llm.runner, PROMPTS[0]
    assert isinstance(runner, Runner) and runner.head is not None
    sequence = runner.open("test", 120)
    runner.prefill(sequence, text[:-1])
    cache: Any = sequence.cache
    hidden = torch.from_numpy(np.stack(cache._hidden))
    runner.reserve(sequence, 8)
    drafted = [3, 5, 8]
    found = [*runner.head.begin([cache], text[-1:])]
    for token in drafted:
        found += [*runner.head.go_on([cache], [token])]
    ids = [*text[1:], *drafted]
    embedded = torch.from_numpy(unpack_rows(runner.decoder.matrix("embed"), ids))
    exact, same = (
        Reference(model, dtype).drafts(hidden.to(dtype), embedded.to(dtype))
        for dtype in (torch.float64, torch.float32)
    )
    assert_matches(np.stack(found), exact, same)
    runner.close(sequence)
    assert runner.arena.used == 0


def test_hidden_states_are_those_after_the_final_norm(model: Path) -> None:
    runner = drafting(model).runner
    assert isinstance(runner, Runner)
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPTS[0])
    cache: Any = sequence.cache
    head = "embed" if runner.decoder.config.tied else "head"
    matrix = runner.decoder.matrix(head)
    logits = cache._hidden[-1] @ unpack_rows(matrix, list(range(matrix.rows))).T
    again = runner.open("again", 120)
    np.testing.assert_allclose(runner.prefill(again, PROMPTS[0]), logits, rtol=1e-4, atol=1e-4)
    for each in (sequence, again):
        runner.close(each)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_greedy_outputs_are_those_without_drafts(model: Path, width: int, size: int) -> None:
    params = GREEDY if width == 1 else dataclasses.replace(GREEDY, logprobs=None)
    plain = load(model).generate(PROMPTS, params)
    llm = drafting(model, max_num_seqs=size, speculation={"width": width})
    found = llm.generate(PROMPTS, params)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert all(each.speculation.num_draft_tokens > 40 for each in found)
    assert isinstance(llm.runner, Runner) and llm.runner.arena.used == 0


def test_a_session(model: Path) -> None:
    check_turns(drafting(model), load(model), PROMPTS[0][:20], GREEDY)


def test_a_file_of_llama_cpp(model: Path, tmp_path: Path) -> None:
    """Its module is the folder's: drafts after the same text have the same logits."""
    if "Qwen3NextForCausalLM" in (model / "config.json").read_text():
        pytest.skip("llama.cpp's files of Qwen3-Next have no module")
    file = predictors.as_gguf(model, tmp_path / "model.gguf")
    found = []
    for path in (file, model):
        runner = drafting(path, tokenizer=str(model)).runner
        assert isinstance(runner, Runner) and runner.head is not None
        sequence = runner.open("test", 120)
        runner.prefill(sequence, PROMPTS[0][:-1])
        runner.reserve(sequence, 4)
        logits = runner.head.begin([sequence.cache], PROMPTS[0][-1:])
        found.append(np.stack([*logits, *runner.head.go_on([sequence.cache], [7])]))
        runner.close(sequence)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    plain = load(file, tokenizer=str(model)).generate(PROMPTS, GREEDY)
    drafted = drafting(file, tokenizer=str(model)).generate(PROMPTS, GREEDY)
    assert [each.outputs for each in drafted] == [each.outputs for each in plain]


@pytest.mark.parametrize(("kind", "same"), [("Q8_0", True), ("F32", False)])
def test_codes_of_a_file_stay_as_they_are(tmp_path: Path, kind: str, same: bool) -> None:
    sizes = ("hidden_size", "intermediate_size", "moe_intermediate_size")
    folder = predictors.make(tmp_path / "model", "glm4-moe", **dict.fromkeys(sizes, 64))
    file, bits = predictors.as_gguf(folder, tmp_path / "model.gguf", kind), []
    for weights in ("file", None):
        own = {"quantization": weights}
        runner = drafting(file, tokenizer=str(folder), speculation=own).runner
        assert isinstance(runner, Runner) and runner.head is not None
        bits.append(runner.head.decoder.bits_per_weight)
    assert bits[1] == bits[0] if same else bits[1] < bits[0]


@pytest.mark.parametrize(
    "speculation", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}], ids=str
)
def test_other_types(model: Path, speculation: dict[str, Any]) -> None:
    plain = load(model).generate(PROMPTS, GREEDY)
    found = drafting(model, speculation=speculation).generate(PROMPTS, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]


def test_of_several_modules_the_first_drafts(tmp_path: Path) -> None:
    """The others' weights are not read; every draft is the first one's."""
    drafted = []
    for modules in (1, 2):
        folder = predictors.make(tmp_path / str(modules), "deepseek-v3")
        config = json.loads((folder / "config.json").read_text())
        config["num_nextn_predict_layers"] = modules
        (folder / "config.json").write_text(json.dumps(config))
        weights = load_file(folder / "model.safetensors")
        own = {name: each for name, each in weights.items() if "layers.3." in name}
        if modules == 2:
            weights |= {name.replace(".3.", ".4.", 1): -each for name, each in own.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        found = drafting(folder).generate(PROMPTS, GREEDY)
        drafted.append([(each.outputs, each.speculation) for each in found])
    assert drafted[0] == drafted[1]


def test_models_without_a_module(tmp_path: Path) -> None:
    folder = tiny.shallow(tmp_path)
    with pytest.raises(InputError) as error:
        drafting(folder)
    assert str(error.value) == (
        f"speculator 'mtp': the files of {folder} have no module that predicts further tokens; "
        "'model' names an assistant, and 'suffix' drafts for any model"
    )


def test_a_damaged_module_is_refused(tmp_path: Path) -> None:
    """Only where it is asked for: the model runs without."""
    folder = predictors.make(tmp_path, "glm4-moe")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.3.hnorm.weight"]
    weights["model.layers.3.extra.weight"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder).generate(PROMPTS[:1], GREEDY)
    with pytest.raises(InputError, match=r"missing: .*hnorm.weight; unknown: .*extra.weight"):
        drafting(folder)
