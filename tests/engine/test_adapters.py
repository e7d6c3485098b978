"""LoRA adapters: their tokens are those of merged weights, alone and in a batch with others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adapters
import gguf_families
import hf_reference
import tiny
from engines import sharing
from suffice import LLM, AsyncLLM, RequestOutput, SamplingParams, native
from suffice.checkpoints.adapter_settings import AdapterSettings
from suffice.checkpoints.adapters import read_adapters
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.errors import InputError
from suffice.trace import Trace

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=2)
PROMPTS = adapters.prompts(6, tiny.VOCABULARY)
NAMES = [None, "one", "two", "one", None, "two"]


load = sharing(threads=1, dtype="float32")


def results(outputs: list[RequestOutput]) -> list[Any]:
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]


def tokens_of_transformers(folder: Path, prompt: list[int], count: int) -> list[int]:
    model = hf_reference.load(folder, torch.float32)
    found = list(prompt)
    for _ in range(count):
        found.append(int(hf_reference.logits(model, torch.tensor(found))[-1].argmax()))
    return found[len(prompt) :]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, two adapters of different ranks, and the model with each merged in."""
    root = tmp_path_factory.mktemp("adapters")
    base = tiny.make(root / "base", "llama", tokenizer=True)
    all_targets = adapters.TARGETS["llama"]
    one = adapters.write(root / "one", base, all_targets, rank=4, seed=1)
    two = adapters.write(
        root / "two", base, ("q_proj", "down_proj"), rank=20, seed=2, use_rslora=True
    )
    return {
        "base": base,
        "one": one,
        "two": two,
        "one merged": adapters.merged(root / "one-merged", base, one),
        "two merged": adapters.merged(root / "two-merged", base, two),
    }


@pytest.fixture(scope="module")
def llm(made: dict[str, Path]) -> LLM:
    return load(made["base"], adapters={"one": made["one"], "two": made["two"]})


@pytest.mark.parametrize(
    "variant", ["falcon-h1", "glm", "gpt2", "gptj", "minicpm3", "neox", "olmo2", "opt", "phi3"]
)
def test_modules_of_other_names_of_joined_matrices_and_with_norms_of_all_heads(
    variant: str, tmp_path: Path
) -> None:
    base = tiny.make(tmp_path / "base", variant, tokenizer=True)
    own = adapters.write(
        tmp_path / "own", base, adapters.TARGETS[variant], transposed=variant == "gpt2"
    )
    merged = adapters.merged(tmp_path / "merged", base, own)
    llm = load(base, adapters={"own": own})
    prompt = PROMPTS[1]
    (plain,), (output,) = (llm.generate([prompt], GREEDY, adapter=a) for a in (None, "own"))
    assert list(output.outputs[0].token_ids) == tokens_of_transformers(merged, prompt, 16)
    assert output.outputs[0].token_ids != plain.outputs[0].token_ids


def test_a_file_with_multipliers_in_its_weights_takes_no_adapters(tmp_path: Path) -> None:
    base = tiny.make(tmp_path / "base", "falcon-h1", tokenizer=True)
    own = adapters.write(tmp_path / "own", base, ("q_proj",))
    config = open_checkpoint(gguf_families.write(base, tmp_path / "x.gguf")).config
    assert read_adapters([("own", str(own))], replace(config, adaptable=True), "float32")
    with pytest.raises(InputError, match="adapter 'own': the model's GGUF file has factors in its"):
        read_adapters([("own", str(own))], config, "float32")


@pytest.mark.parametrize("name", ["one", "two"])
def test_tokens_are_those_of_merged_weights_in_transformers(
    name: str, llm: LLM, made: dict[str, Path]
) -> None:
    for prompt in PROMPTS[:3]:
        (output,) = llm.generate([prompt], GREEDY, adapter=name)
        expected = tokens_of_transformers(made[f"{name} merged"], prompt, 16)
        assert list(output.outputs[0].token_ids) == expected


def test_rank_and_alpha_of_patterns(made: dict[str, Path], tmp_path: Path) -> None:
    own = adapters.write(
        tmp_path / "own",
        made["base"],
        ("q_proj", "v_proj", "up_proj"),
        rank=3,
        rank_pattern={"v_proj": 17},
        alpha_pattern={
            "1.self_attn.q_proj": 30,
            "v_pro": 90,
        },  # no part of a name
    )
    merged = adapters.merged(tmp_path / "merged", made["base"], own)
    (output,) = load(made["base"], adapters=[f"own={own}"]).generate(
        [PROMPTS[1]], GREEDY, adapter="own"
    )
    expected = tokens_of_transformers(merged, PROMPTS[1], 16)
    assert list(output.outputs[0].token_ids) == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"prefill_chunk": 7},
        pytest.param(
            {"threads": 2},
            marks=pytest.mark.skipif(native.cores() < 2, reason="needs two cores"),
        ),
        {"quantization": "int8"},
        {"speculative_config": "ngram"},
    ],
    ids=str,
)
def test_a_batch_of_several_adapters_changes_no_bit(
    options: dict[str, Any], made: dict[str, Path]
) -> None:
    both = {"one": made["one"], "two": made["two"]}
    same = {name: each for name, each in options.items() if name in ("dtype", "quantization")}
    plain, asked = (
        load(made["base"], adapters=both, **same),
        load(made["base"], adapters=both, **options),
    )
    alone = [
        plain.generate([prompt], GREEDY, adapter=name)[0]
        for prompt, name in zip(PROMPTS, NAMES, strict=True)
    ]
    together = asked.generate(PROMPTS, GREEDY, adapter=NAMES)
    assert results(together) == results(alone)
    without = load(made["base"], **same).generate([PROMPTS[0]], GREEDY)
    assert results(without) == results(alone[:1])


@pytest.mark.skipif(native.cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_many_adapters_of_few_rows_are_prepared_by_all_threads(
    options: dict[str, Any], made: dict[str, Path], tmp_path: Path
) -> None:
    base, names = made["base"], [f"a{seed}" for seed in range(5)]
    targets = adapters.TARGETS["llama"]
    folders = {
        name: adapters.write(tmp_path / name, base, targets, rank=3 + at, seed=at)
        for at, name in enumerate(names)
    }
    one, two = (load(base, adapters=folders, threads=count, **options) for count in (1, 2))
    prompts = PROMPTS[: len(names)]
    alone = [
        one.generate([prompt], GREEDY, adapter=name)[0]
        for prompt, name in zip(prompts, names, strict=True)
    ]
    together = two.generate(prompts, GREEDY, adapter=names)
    assert results(together) == results(alone)
    assert len({output.outputs[0].token_ids for output in together}) == len(names)


def test_cached_prefixes_are_not_shared_between_adapters(made: dict[str, Path]) -> None:
    import asyncio

    prompt = [int(t) for t in torch.arange(3, 103) % 190 + 3]
    llm = load(made["base"], adapters={"one": made["one"]}, max_model_len=128)

    async def ask() -> list[RequestOutput]:
        async with AsyncLLM.over(llm) as engine:
            return [
                await engine.generate(prompt, GREEDY, reuse=True, adapter=name)
                for name in (None, "one", None, "one")
            ]

    plain, changed, plain_again, changed_again = asyncio.run(ask())
    assert [each.num_cached_tokens > 0 for each in (plain, changed)] == [False, False]
    assert [each.num_cached_tokens > 0 for each in (plain_again, changed_again)] == [True, True]
    assert results([plain, changed]) == results([plain_again, changed_again])
    assert results([plain]) != results([changed])


def test_streams_and_sessions_have_an_adapter(llm: LLM) -> None:
    prompt = PROMPTS[1]
    (whole,) = llm.generate([prompt], GREEDY, adapter="one")
    *_, (_, last) = llm.stream(prompt, GREEDY, adapter="one")
    with llm.session("one") as session:
        *_, (_, kept) = session.stream(prompt, GREEDY)
    assert results([whole]) == results([last]) == results([kept])


def test_the_bytes_of_an_adapter_count_as_weights(llm: LLM) -> None:
    model: NativeModel = llm.runner._native  # type: ignore[attr-defined]
    config, read = llm.runner.decoder.config, []  # type: ignore[attr-defined]
    for adapters_of_rows in ((-1,), (0,), (0, 0), (0, 1)):
        trace = Trace(len(config.layers), config.kv_heads)
        batch = []
        for adapter in adapters_of_rows:
            sequence = llm.runner.open("", 16)  # type: ignore[attr-defined]
            llm.runner.reserve(sequence)  # type: ignore[attr-defined]
            batch.append(StepRows(sequence.cache, [5], adapter=adapter))
        model.step(batch, trace)
        read.append(trace.weight_bytes_read)
    none, one, twice, both = read
    first, second = (each.bytes for each in model._adapters)
    assert (one - none, twice - none, both - none) == (first, first, first + second)


def test_refused_adapters(llm: LLM, made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^unknown adapter 'on'\. Did you mean 'one'\? Known: on"):
        llm.generate([PROMPTS[0]], GREEDY, adapter="on")
    with pytest.raises(InputError, match=r"^adapter: must be a name, None, or a list of them"):
        llm.generate(PROMPTS[:2], GREEDY, adapter=["one"])
    for given, message in (
        ("one", "adapters: must be NAME=FOLDER, not 'one'"),
        ({"": "x"}, "adapters: must be NAME=FOLDER, not ''='x'"),
        (["a=x", "a=y"], "adapters: 'a' is given twice"),
        ({"a": tmp_path}, "has no adapter_config.json, so it is no PEFT folder"),
    ):
        with pytest.raises(InputError) as error:
            load(made["base"], adapters=given)
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "not supported: DoRA (use_dora)"),
        ({"modules_to_save": ["lm_head"]}, "trained as a whole (modules_to_save)"),
        ({"init_lora_weights": "pissa_niter_4"}, "= 'pissa_niter_4' is not supported: it changes"),
        ({"target_modules": 5}, "target_modules = 5 must be a list of names, or a text"),
        ({"target_modules": ["q_proj", 5]}, "target_modules = ['q_proj', 5] must be a list of"),
        ({"rank_pattern": {"(a|a)*": 4}}, "rank_pattern: '(a|a)*' is not supported; names of"),
        ({"alpha_pattern": {".*.*.*q": 4}}, "alpha_pattern: '.*.*.*q' is not supported; names of"),
        ({"alpha_pattern": [1]}, "alpha_pattern = [1] must be an object"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3' is not supported; supported: 'LORA'"),
        ({"bias": "all"}, "bias = 'all' is not supported; 'none' is"),
        ({"lora_bias": True}, "biases of low-rank products (lora_bias)"),
        ({"r": 5}, "has rank 4, but adapter_config.json says 5"),
        ({"lora_alpha": -1}, "'lora_alpha' = -1 must be a finite number above 0"),
        ({"lora_alpha": 1e38}, "lora_alpha = 1e+38 must be at most 1e+06"),
        ({"alpha_pattern": {"q_proj": 1e38}}, "lora_alpha = 1e+38 must be at most 1e+06"),
        ({"lora_alpha": float("nan")}, "'lora_alpha' = nan must be a finite number above 0"),
        ({"target_modules": ["v_proj"]}, "which target_modules = ['v_proj'] does not name"),
        ({"exclude_modules": ["q_proj"]}, "which exclude_modules = ['q_proj'] names"),
        ({"exclude_modules": 5}, "exclude_modules = 5 must be a list of names, or a text"),
        ({"layers_to_transform": [1]}, "which layers_to_transform = [1] does not name"),
        (
            {"layers_to_transform": [0, 1], "layers_pattern": "h"},
            "which layers_to_transform = [0, 1] does not name of h",
        ),
        ({"layers_to_transform": 1.5}, "layers_to_transform = 1.5 must be a number, or a list of"),
        (
            {"layers_to_transform": 0, "layers_pattern": ["(a|a)*"]},
            "layers_pattern = ['(a|a)*'] must be names of modules",
        ),
    ],
)
def test_kinds_that_are_refused(
    fields: dict[str, Any], message: str, made: dict[str, Path], tmp_path: Path
) -> None:
    own = adapters.write(tmp_path / "own", made["base"], ("q_proj",), **fields)
    with pytest.raises(InputError) as error:
        load(made["base"], adapters={"own": own})
    assert message in str(error.value)
    assert str(error.value).startswith("adapter 'own': ")


@pytest.mark.parametrize(
    "fields",
    [
        {"exclude_modules": ["k_proj", "lm_head"], "layers_to_transform": [*range(8)]},
        {"layers_to_transform": [*range(8)], "layers_pattern": "layers"},
        {"layers_to_transform": [*range(8)], "layers_pattern": ["h", "layers"]},
        {"exclude_modules": ".*lm_head", "layers_pattern": "layers"},
    ],
    ids=str,
)
def test_choices_of_modules_that_agree_with_the_tensors(
    fields: dict[str, Any], made: dict[str, Path], tmp_path: Path
) -> None:
    plain, own = (
        adapters.write(tmp_path / name, made["base"], ("q_proj",), **given)
        for name, given in (("plain", {}), ("own", fields))
    )
    llm = load(made["base"], adapters={"plain": plain, "own": own})
    expected, found = (
        llm.generate([PROMPTS[1]], GREEDY, adapter=name) for name in ("plain", "own")
    )
    assert results(found) == results(expected)


@pytest.mark.parametrize(
    ("module", "lists", "changed"),
    [
        ("model.layers.1.self_attn.q_proj", [], True),
        ("model.layers.11.self_attn.q_proj", [], False),
        ("model.layers.1.block.2.q_proj", [], False),  # the last number counts, as in PEFT
        ("model.layers.1.block.2.q_proj", ["layers"], True),
        ("transformer.h.1.attn.c_attn", ["layers"], False),
        ("transformer.h.1.attn.c_attn", ["layers", "h"], True),
        ("model.norm", [], False),
        ("model.layers.q_proj.1", [], False),
    ],
)
def test_the_layer_of_a_module(module: str, lists: list[str], changed: bool) -> None:
    raw = {"layers_to_transform": [1], "layers_pattern": lists}
    settings = AdapterSettings.read(raw, "adapter 'a'")
    if changed:
        settings.check_target(module)
        return
    with pytest.raises(InputError, match=r"layers_to_transform = \[1\] does not name"):
        settings.check_target(module)


def test_matrices_that_are_refused(made: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    own = adapters.write(tmp_path / "own", made["base"], ("q_proj",))
    path = own / "adapter_model.safetensors"
    stored = load_file(path)
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    odd = {
        "embeddings": {"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 8)},
        "has no lora_A or no lora_B": {f"{first}A.weight": None},
        "which do not fit the model's [64, 64]": {f"{first}A.weight": torch.zeros(4, 32)},
    }
    for change in odd.values():
        tensors = {name: each for name, each in {**stored, **change}.items() if each is not None}
        save_file(tensors, path)
        with pytest.raises(InputError, match=r"^adapter 'own': "):
            load(made["base"], adapters={"own": own})
    experts = tiny.make(tmp_path / "experts", "mixtral", tokenizer=True)
    save_file({
        f"base_model.model.model.layers.0.block_sparse_moe.experts.0.w1.lora_{part}.weight": each
        for part, each in (("A", torch.zeros(4, 64)), ("B", torch.zeros(48, 4)))
    }, path)  # fmt: skip
    config = own / "adapter_config.json"
    config.write_text(config.read_text().replace("q_proj", "w1"))
    with pytest.raises(InputError, match="is no matrix of attention or of a dense MLP"):
        load(experts, adapters={"own": own})
