"""An adapter that is added to the weights, and one that is an engine's usual one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adapters
import gguf_families
import hf_reference
import tiny
from calibrating import text_flags
from commands import Cli, complaint
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.merged import merged
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import QUANTS

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
PROMPT = adapters.prompts(2, tiny.VOCABULARY)[1]
FLOAT = QUANTS.build("none:dtype=float32")


def load(folder: Path, **options: Any) -> LLM:
    return LLM(folder, **{"threads": 1, "dtype": "float32", **options})


def answered(llm: LLM, **options: Any) -> Any:
    (output,) = llm.generate([PROMPT], GREEDY, **options)
    return output.outputs[0].token_ids, output.outputs[0].logprobs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("merged")
    base = tiny.make(root / "base", "llama", tokenizer=True)
    return base, adapters.write(root / "one", base, adapters.TARGETS["llama"], rank=4, seed=1)


@pytest.mark.parametrize("variant", ["gpt2", "llama", "neox", "phi3"])
def test_weights_are_those_that_peft_merges(variant: str, tmp_path: Path) -> None:
    base = tiny.make(tmp_path / "base", variant, tokenizer=True)
    own = adapters.write(
        tmp_path / "own", base, adapters.TARGETS[variant], transposed=variant == "gpt2"
    )
    folder = adapters.merged(tmp_path / "merged", base, own)
    checkpoint, _ = merged(open_checkpoint(base), str(own), "")
    found = DecoderWeights.from_checkpoint(checkpoint, FLOAT)
    expected = DecoderWeights.from_checkpoint(open_checkpoint(folder), FLOAT)
    for name in expected.weights:
        if name.rpartition(".")[2] in ("q", "k", "v", "o", "gate", "up", "down"):
            values = unpack(found.matrix(name))
            np.testing.assert_allclose(values, unpack(expected.matrix(name)), rtol=0, atol=2e-6)
    model = hf_reference.load(folder, torch.float32)
    tokens = list(PROMPT)
    for _ in range(GREEDY.max_tokens or 0):
        tokens.append(int(hf_reference.logits(model, torch.tensor(tokens))[-1].argmax()))
    assert list(answered(load(base, merge_adapter=own))[0]) == tokens[len(PROMPT) :]


def test_changed_matrices_of_a_file_in_codes_are_floats(tmp_path: Path) -> None:
    """Rows of queries and keys lie in another order in such a file."""
    base = tiny.make(tmp_path / "base", "granite")
    own = adapters.write(tmp_path / "own", base, ("q_proj", "up_proj"))
    file = gguf_families.write(base, tmp_path / "x.gguf", "Q8_0")
    checkpoint = open_checkpoint(file)
    quant = QUANTS.build("file:dtype=float32")
    plain = DecoderWeights.from_checkpoint(checkpoint, quant)
    found = DecoderWeights.from_checkpoint(merged(checkpoint, str(own), "")[0], quant)
    changes = adapters.changes(own)
    for layer in range(len(checkpoint.config.layers)):
        for name, module in (("q", "self_attn.q_proj"), ("up", "mlp.up_proj")):
            canonical = f"layers.{layer}.{name}"
            assert plain.matrix(canonical).dtype == "codes"
            assert found.matrix(canonical).dtype == "float32"
            change = unpack(found.matrix(canonical)) - unpack(plain.matrix(canonical))
            expected = changes[f"model.layers.{layer}.{module}"].numpy()
            np.testing.assert_allclose(change, expected, rtol=0, atol=1e-5)
        assert found.matrix(f"layers.{layer}.v").dtype == "codes", "not changed, so not unpacked"


def test_a_merged_adapter_costs_no_bytes_and_is_quantized_with_the_weights(
    made: tuple[Path, Path],
) -> None:
    base, own = made
    plain, found = load(base), load(base, merge_adapter=own)
    expected = answered(load(base, adapters={"one": own}), adapter="one")
    assert answered(plain)[0] != answered(found)[0] == expected[0]
    assert plain.runner.trace.weight_bytes_read == found.runner.trace.weight_bytes_read > 0
    rounded = load(base, merge_adapter=own, quantization="int8", dtype="auto")
    assert rounded.runner.runs_as == "codes"
    assert answered(rounded)[1] != answered(found)[1]


def test_models_are_told_apart_by_what_was_merged(made: tuple[Path, Path], tmp_path: Path) -> None:
    base, own = made
    other = adapters.write(tmp_path / "other", base, ("q_proj",), seed=9)
    stamps = {load(base, merge_adapter=each).runner.stamp for each in (None, own, other)}
    assert len(stamps) == 3
    assert load(base, merge_adapter=own).runner.stamp in stamps


def test_refused_mergers(made: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    base, own = made
    file = tmp_path / "out.safetensors"
    flags = (*text_flags(tmp_path, 6), "-o", str(file), "--method", "rtn:bits=8,group=32")
    assert cli("quantize", "-m", str(base), *flags).code == 0
    with pytest.raises(InputError, match=r"is quantized already: --adapter leaves its weights as"):
        load(file, merge_adapter=own, dtype="auto")
    with pytest.raises(
        InputError, match=r"^--merge-adapter: .* has no adapter_config\.json, so it"
    ):
        load(base, merge_adapter=tmp_path)


def test_an_engine_has_a_usual_adapter(made: tuple[Path, Path]) -> None:
    base, own = made
    both = {"two": own, "one": own}
    plain, usual = load(base, adapters=both), load(base, adapters=both, adapter="one")
    assert answered(usual) == answered(plain, adapter="one") != answered(plain)
    steps = []
    for llm, adapter in ((plain, -1), (plain, 1), (usual, None)):
        runner: Any = llm.runner
        runner.adapter = runner.adapter if adapter is None else adapter
        sequence = runner.open("", 64)
        first = runner.prefill(sequence, PROMPT)
        runner.reserve(sequence)
        steps.append((first, runner.step([sequence], [5])[0]))
        chunks = runner.prefill_all(runner.open("", 64), PROMPT)
        assert np.array_equal(np.concatenate(list(chunks))[-1], first)
    (without, _), (first, second), (found, after) = steps
    assert np.array_equal(found, first) and np.array_equal(after, second)
    assert not np.array_equal(without, first)
    with pytest.raises(InputError, match=r"^unknown adapter 'on'\. Did you mean 'one'\? Known: on"):
        load(base, adapters=both, adapter="on")


def test_bench_counts_an_adapter(made: tuple[Path, Path], cli: Cli) -> None:
    base, own = made
    arguments = ("bench", "-m", str(base), "-p", "0", "-n", "3", "-r", "1", "-o", "json")
    read = [
        json.loads(cli(*arguments, *more).out)[0]["weight_bytes_per_token"]
        for more in ((), ("--adapter", f"one={own}"), ("--merge-adapter", str(own)))
    ]
    (matrices,) = (
        llm.runner._native._adapters  # type: ignore[attr-defined]
        for llm in (LLM(base, adapters={"one": own}, threads=1),)
    )
    assert read[1] - read[0] == matrices[0].bytes and read[2] == read[0]
    said = complaint(cli(*arguments, "--adapter", f"a={own}", "--adapter", f"b={own}"))
    assert said == "bench uses one --adapter, 2 given: `serve` has many"


def test_perplexity_is_that_of_the_adapter(
    made: tuple[Path, Path], cli: Cli, tmp_path: Path
) -> None:
    base, own = made
    text = tmp_path / "text.txt"
    text.write_text("The owl sat in the oak, and the night was long. " * 8)
    arguments = ("eval", "perplexity", "-m", str(base), "--text", str(text), "--window", "64")
    arguments = (*arguments, "--limit", "2", "-o", "json", "--dtype", "float32")
    for mode in ("decode", "prefill"):
        plain, alone, within = (
            json.loads(cli(*arguments, "--mode", mode, *more).out)["result"]["perplexity"]
            for more in ((), ("--adapter", f"one={own}"), ("--merge-adapter", str(own)))
        )
        assert alone == pytest.approx(within, rel=1e-4)
        assert abs(plain / alone - 1) > 0.01


def test_a_reference_of_another_model_has_no_adapter(made: tuple[Path, Path]) -> None:
    from suffice.cli.adapters import AdapterFlags
    from suffice.cli.eval.reference import reference_flags
    from suffice.cli.options import ModelFlags

    base, own = made
    flags = ModelFlags()
    options = replace(flags.options, model=str(base), merge_adapter=str(own), quantization="int8")
    given = AdapterFlags([f"one={own}"]).usual(replace(flags, options=options), "eval perplexity")
    same, other = (reference_flags(name, given).options for name in ("exact", str(own)))
    assert (same.adapter, same.merge_adapter) == ("one", str(own)) and same.adapters
    assert (other.adapter, other.merge_adapter, tuple(other.adapters)) == (None, None, ())
