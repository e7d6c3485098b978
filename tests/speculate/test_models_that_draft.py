"""Drafts by a second model, and by the model itself in a cheaper setting.

Also tests drafting.py, draft_model.py and proposers.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny
from engines import sharing
from suffice import LLM, Config, SamplingParams
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.speculate import SPECULATORS, DraftingSample, Widths
from suffice.speculate.budget import Budget
from suffice.speculate.self import SelfDraft

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
DRAWN = SamplingParams(temperature=0.8, top_k=30, max_tokens=24, seed=5, ignore_eos=True)
PROMPTS = [[(7 * i + 13 * number) % 190 + 3 for i in range(60)] for number in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Tiny checkpoints with a tokenizer."""
    return functools.cache(
        lambda seed=0, **changes: tiny.make(
            tmp_path_factory.mktemp("model"), "llama", tokenizer=True, seed=seed, **changes
        )
    )


load = sharing(threads=1, dtype="float32")


def drafting(folder: Path, method: dict[str, Any], **options: Any) -> LLM:
    """Return an engine that drafts whether it pays or not, unless told otherwise."""
    return load(folder, speculative_config={"adaptive": False, **method}, **options)


def runner_of(llm: LLM) -> Runner:
    assert isinstance(llm.runner, Runner)
    return llm.runner


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("other", [False, True])
def test_greedy_outputs_are_those_without_drafts(
    models: Callable[..., Path], other: bool, size: int
) -> None:
    plain = load(models()).generate(PROMPTS, GREEDY)
    draft = {"method": "draft_model", "model": str(models(seed=7) if other else models())}
    llm = drafting(models(), draft, max_num_seqs=size)
    found = llm.generate(PROMPTS, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    for each in found:
        if other:
            assert each.speculation.draft_acceptance_rate < 0.5
        else:
            assert each.speculation.draft_acceptance_rate == 1, "the model knows itself"
            assert each.speculation.steps == 5, "23 tokens, 5 a step"
    assert runner_of(llm).arena.used == 0, "both models gave their memory back"


def test_drawn_drafts_of_the_same_model_are_all_accepted(models: Callable[..., Path]) -> None:
    draft = {"method": "draft_model", "model": str(models()), "num_speculative_tokens": 3}
    (found,) = drafting(models(), draft).generate(PROMPTS[:1], DRAWN)
    assert found.speculation.draft_acceptance_rate == 1
    (again,) = drafting(models(), draft).generate(PROMPTS[:1], DRAWN)
    assert again.outputs == found.outputs


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "method",
    [
        {"method": "draft_model", "width": 3},
        {"method": "self", "width": 2, "quantization": "rtn:group=32,bits=3"},
        {"method": "self", "width": 3, "skip_layers": "1", "quantization": None},
    ],
    ids=str,
)
def test_siblings_give_the_tokens_of_plain_decoding(
    models: Callable[..., Path], method: dict[str, Any], size: int
) -> None:
    """Log probabilities after a sibling differ by rounding, which turns no choice here."""
    params = [dataclasses.replace(GREEDY, max_tokens=60, logprobs=None)] * 3
    plain = load(models()).generate(PROMPTS, params)
    other = {"model": str(models(seed=7))} if method["method"] == "draft_model" else {}
    accepted = {}
    for width in (1, method["width"]):
        llm = drafting(models(), method | other | {"width": width}, max_num_seqs=size)
        found = llm.generate(PROMPTS, params)
        assert [each.outputs for each in found] == [each.outputs for each in plain]
        assert runner_of(llm).arena.used == 0
        accepted[width] = sum(each.speculation.num_accepted_tokens for each in found)
    assert accepted[method["width"]] > accepted[1] >= 0


@pytest.mark.parametrize("width", [1, 3])
def test_drawn_results_do_not_depend_on_the_batch(models: Callable[..., Path], width: int) -> None:
    draft = {"method": "draft_model", "model": str(models(seed=7)), "width": width}
    params = [dataclasses.replace(DRAWN, seed=seed) for seed in range(3)]
    alone = drafting(models(), draft, max_num_seqs=1).generate(PROMPTS, params)
    batch = drafting(models(), draft, max_num_seqs=3).generate(PROMPTS, params)
    assert [each.outputs for each in batch] == [each.outputs for each in alone]
    assert any(each.speculation.num_accepted_tokens for each in batch)


def test_a_text_too_long_for_the_second_model_goes_on_without(models: Callable[..., Path]) -> None:
    short = models(max_position_embeddings=70)
    plain = load(models()).generate(PROMPTS[:1], GREEDY)
    llm = drafting(models(), {"method": "draft_model", "model": str(short)})
    (found,) = llm.generate(PROMPTS[:1], GREEDY)
    assert found.outputs == plain[0].outputs
    assert 0 < found.speculation.num_drafts < found.speculation.steps


def test_a_second_model_catches_up_after_a_pause(models: Callable[..., Path]) -> None:
    """More tokens than a step takes are run as a prompt, and the drafts are right at once."""
    made: list[int] = []

    class Pausing(Budget):
        def shapes(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> list[Widths]:
            made.append(0 if 2 <= len(made) < 45 else min(room[0], 3))
            return [(1,) * made[-1]]

    params = dataclasses.replace(GREEDY, max_tokens=62)
    plain = load(models()).generate(PROMPTS[:1], params)
    llm = drafting(models(), {"method": "draft_model", "model": str(models())})
    llm.loop.budget = Pausing(llm.config.speculative_config)
    (found,) = llm.generate(PROMPTS[:1], params)
    assert found.outputs == plain[0].outputs
    assert found.speculation.draft_acceptance_rate == 1
    assert made[45:] and sum(made[45:]) > 5


def test_no_memory_for_the_second_model_is_no_error(models: Callable[..., Path]) -> None:
    plain = load(models(), growth="upfront")
    memory = runner_of(plain)
    sequence = memory.open("probe", 128)
    memory.prefill(sequence, [3] * 8)
    need = sequence.cache.bytes
    memory.close(sequence)
    draft = {"method": "draft_model", "model": str(models())}
    llm = drafting(models(), draft, growth="upfront", kv_cache_bytes=need)
    (found,) = llm.generate(PROMPTS[:1], GREEDY)
    assert found.error is None
    assert found.speculation.num_drafts == 0
    assert found.outputs == plain.generate(PROMPTS[:1], GREEDY)[0].outputs


def test_a_session_with_a_second_model(models: Callable[..., Path]) -> None:
    llm, plain = (
        drafting(models(), {"method": "draft_model", "model": str(models())}),
        load(models()),
    )
    with llm.session() as session, plain.session() as other:
        prompt = PROMPTS[0][:20]
        for _ in range(2):
            one = list(session.stream(prompt, GREEDY))[-1][1]
            two = list(other.stream(prompt, GREEDY))[-1][1]
            assert one.outputs == two.outputs
            assert session.tokens == other.tokens
            prompt = [*session.tokens, 8]


@pytest.mark.parametrize("kv", ["int8", "kmeans4", "planes", "bfloat16/int8"])
def test_a_draft_model_s_keys_and_values(models: Callable[..., Path], kv: str) -> None:
    """The same model with others drafts nearly what it says itself, and the text is its own."""
    plain = load(models()).generate(PROMPTS, GREEDY)
    draft = {"method": "draft_model", "model": str(models()), "kv_cache_dtype": kv}
    llm = drafting(models(), draft)
    found = llm.generate(PROMPTS, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    proposer = runner_of(llm).proposer
    assert proposer._runner.config.kv_cache_dtype == kv  # type: ignore[attr-defined]
    for each in found:
        assert each.speculation.num_accepted_tokens > 0


def test_another_vocabulary_is_refused(models: Callable[..., Path], tmp_path: Path) -> None:
    other = tiny.make(tmp_path, "llama", tokenizer=True)
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace('"<|user|>"', '"<|human|>"'))
    with pytest.raises(InputError) as error:
        drafting(models(), {"method": "draft_model", "model": str(other)})
    assert str(error.value) == (
        f"speculator 'draft_model': {other} has another vocabulary than {models()}: drafts are "
        "token ids, so the tokenizers must be the same"
    )


_plain: dict[str, Any] = {}  # what the model says without drafts, by its options


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int8", "kv_cache_dtype": "int8", "dtype": "auto"},
        {"growth": "bmc:rows=8"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "method",
    [
        {"attention": "certified:eps=0.9,bounded=false", "recent": 0, "quantization": None},
        {"recent": 200, "sinks": 4, "quantization": None},
        {"quantization": "rtn:group=32,bits=3", "recent": 0},
        {"skip_layers": "1", "recent": 0, "quantization": None},
        {
            "attention": "certified:eps=0.5",
            "recent": 100,
            "quantization": "rtn:group=32,act_bits=8",
        },
    ],
    ids=str,
)
def test_the_model_itself_drafts(
    models: Callable[..., Path], method: dict[str, Any], options: dict[str, Any]
) -> None:
    """Prompts are long enough for sketches; drafts leave no trace, bit for bit."""
    folder = models(max_position_embeddings=512)
    prompts = [[(11 * i * i + number) % 190 + 3 for i in range(250)] for number in range(2)]
    params = [GREEDY, dataclasses.replace(GREEDY, max_tokens=50)]
    if (known := str(options)) not in _plain:
        _plain[known] = load(folder, **options).generate(prompts, params)
    plain = _plain[known]
    found = drafting(folder, {"method": "self"} | method, **options).generate(prompts, params)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    for each in found:
        assert 0 < each.speculation.num_accepted_tokens < each.speculation.num_draft_tokens


def test_the_model_itself_draws(models: Callable[..., Path]) -> None:
    llm = drafting(models(), {"method": "self"})
    (found,) = llm.generate(PROMPTS[:1], DRAWN)
    assert found.speculation.num_accepted_tokens > 0
    assert len(found.outputs[0].token_ids) == 24


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            {"method": "draft_model"},
            {},
            "speculator 'draft_model': needs 'model': a known name, a folder, a hub id or a file "
            "of the model that drafts",
        ),
        (
            {"method": "self", "kv_cache_dtype": "kmeans4"},
            {},
            "speculator 'self' has no option 'kv_cache_dtype'. Options: adaptive, attention, "
            "num_speculative_tokens, quantization, recent, sinks, skip_layers, width",
        ),
        (
            {"method": "self", "attention": "aet"},
            {},
            "speculator 'self': attention='aet': must be exact, or one of art, certified, "
            "skip_softmax, tiers with a setting that reads fewer rows",
        ),
        (
            {"method": "self", "attention": "certified:eps=0"},
            {},
            "speculator 'self': attention='certified:eps=0': must be exact, or one of art, "
            "certified, skip_softmax, tiers with a setting that reads fewer rows",
        ),
        (
            {"method": "self", "recent": 0, "quantization": None},
            {},
            "speculator 'self': drafts would cost as much as the model: give attention, "
            "recent, quantization or skip_layers",
        ),
        *(
            (
                {"method": "self", "attention": f"{name}:calibrated"},
                {},
                f"speculator 'self': attention='{name}:calibrated': drafts have one threshold for "
                "all heads: leave out calibrated",
            )
            for name in ("certified", "art")
        ),
        (
            {"method": "self", "sinks": -1},
            {},
            "speculator 'self': sinks=-1: must be at least 0 tokens",
        ),
        (
            {"method": "self", "quantization": "rtm"},
            {},
            "unknown quant 'rtm'. Did you mean 'rtn'? Known: 4bit, file, int8, kllm, kmeans, none, "
            "rtn",
        ),
        *(
            (
                {"method": "self", "skip_layers": wrong},
                {},
                f"speculator 'self': skip_layers='{wrong}': must be layers and ranges of them with "
                "+ between, such as 10-12+20",
            )
            for wrong in ("3-1", "a", "1+", "1,2", "-1", "[1, 2]", "0-99999999999", "9" * 4400)
        ),
        (
            {"method": "self", "attention": "certifid"},
            {},
            "unknown attention 'certifid'. Did you mean 'certified'? Known: aet, art, certified, "
            "exact, skip_softmax, tiers",
        ),
        (
            {"method": "self"},
            {"policy": "snapkv"},
            "speculator 'self' with policy 'snapkv': its drafts select their own tokens, so the "
            "policy must be 'full'",
        ),
        (
            {"method": "self"},
            {"attention": "aet"},
            "speculator 'self' with attention=aet and softmax=exact: drafts must be checked by "
            "exact attention: give that attention to the speculator instead",
        ),
    ],
)
def test_bad_options(method: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Config.create("model", speculative_config=method, **options)
    assert str(error.value) == message


def test_a_setting_in_brackets() -> None:
    spelled = (
        "self:3,attention=(certified:eps=0.3,bounded=false),quantization=(rtn:group=32,act_bits=8)"
    )
    assert SPECULATORS.build(spelled) == SelfDraft(
        3, attention="certified:eps=0.3,bounded=false", quantization="rtn:group=32,act_bits=8"
    )
    assert SPECULATORS.build("self:skip_layers=10-12+20").skipped == (10, 11, 12, 20)
    options = {"quantization": "(rtn:group=64,act_bits=8)"}
    assert SPECULATORS.make("self", options) == SelfDraft(quantization="rtn:group=64,act_bits=8")


def test_a_value_without_a_name_comes_first() -> None:
    with pytest.raises(InputError, match="'2' is not of the form option=value"):
        SPECULATORS.build("self:skip_layers=1,2")
    with pytest.raises(InputError, match="speculator 'self' has no option '1'"):
        SPECULATORS.make("self", {1: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"skip_layers": "3"}, "skip_layers: there is no layer 3; the model has 0..2"),
        ({"skip_layers": "0+5"}, "skip_layers: there is no layer 5; the model has 0..2"),
        ({"skip_layers": "0-2"}, "skip_layers: leaves none of the model's 3 layers"),
        (
            {"quantization": "rtn:compensate=true"},
            "quantization: rtn: compensate=true needs a calibration",
        ),
        (
            {"quantization": "none:dtype=float32", "recent": 0},
            "quantization: saves nothing, and nothing else makes drafts cheaper",
        ),
    ],
)
def test_settings_that_the_model_does_not_take(
    models: Callable[..., Path], method: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        drafting(models(), {"method": "self"} | method)
    assert str(error.value).startswith(f"speculator 'self': {message}")


def test_weights_that_save_nothing_are_not_stored(models: Callable[..., Path]) -> None:
    llm = drafting(models(), {"method": "self", "quantization": "none:dtype=float32"})
    (found,) = llm.generate(PROMPTS[:1], GREEDY)
    stats = found.speculation
    assert stats.num_accepted_tokens == stats.num_draft_tokens, "the model's own, all keys recent"


def test_sinks_beyond_all_measure_are_all_keys(models: Callable[..., Path]) -> None:
    method = {"method": "self", "quantization": None, "recent": 1, "sinks": 2**31 - 1}
    (found,) = drafting(models(), method).generate(PROMPTS[:1], GREEDY)
    stats = found.speculation
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0


def test_a_draft_model_that_is_not_there(models: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"unknown model 'smollm3-135m'\. Did you mean"):
        drafting(models(), {"method": "draft_model", "model": "smollm3-135m"})
