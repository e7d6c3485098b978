"""Assistants of Gemma 4 draft: their logits, and texts. Tests assistants.py of both folders.

Also tests mtp.py, with_state.py and beginning.cpp.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import assistants
import hf_reference
import tiny
from engines import check_turns, sharing
from oracle import assert_matches
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack_rows
from suffice.cache.with_state import CacheWithState
from suffice.decoder.step_rows import StepRows
from suffice.engine.assistants import Assistant
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner, Sequence
from suffice.speculate import Tree

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
DRAWN = SamplingParams(temperature=0.8, top_k=30, max_tokens=24, seed=5, ignore_eos=True)
PROMPTS = [[(7 * i + 13 * number) % 190 + 3 for i in range(45)] for number in range(3)]
WINDOW = 8  # of the models
# by variant: the layers whose keys and values are read, of local and of global attention
READ = {"gemma4": (2, 1), "gemma4-keys": (2, 3)}
load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module", params=READ)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(
        tmp_path_factory.mktemp("model") / request.param, request.param, tokenizer=True
    )


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "gemma4", tokenizer=True)


@pytest.fixture(scope="module", params=[0, 20], ids=["whole", "groups"])
def assistant(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return assistants.make(tmp_path_factory.mktemp("assistant"), model, groups=request.param)


@pytest.fixture(scope="module")
def plain(gemma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assistants.make(tmp_path_factory.mktemp("assistant"), gemma, groups=20)


def drafting(model: Path, assistant: Path, **options: Any) -> LLM:
    method = {"method": "mtp", "model": str(assistant), "adaptive": False}
    method |= {"num_speculative_tokens": 3, "quantization": "file"}
    method |= options.pop("speculation", {})
    return load(model, speculative_config=method, **options)


def parts(llm: LLM) -> tuple[Runner, Assistant]:
    runner = llm.runner
    assert isinstance(runner, Runner) and isinstance(runner.head, Assistant)
    return runner, runner.head


def cache_of(sequence: Sequence) -> CacheWithState:
    assert isinstance(sequence.cache, CacheWithState)
    return sequence.cache


def of_all(head: Assistant, logits: np.ndarray) -> list[np.ndarray]:
    """Return logits [B, D] of what the assistant drafts as rows of all tokens' [V]."""
    tokens = head.drafted
    return [*logits] if tokens is None else [tokens.spread(each, -np.inf) for each in logits]


def drafted(folder: Path, dtype: torch.dtype, text: Any, hidden: Any, embedded: Any) -> Any:
    """Return the logits [steps, V] of the assistant in transformers.

    `text` has the keys and values [1, G, T, D] by kind, `hidden` [H] are the model's at its last
    row, and `embedded` [steps, H] the embeddings of the tokens after it.
    """
    own = hf_reference.load(folder, dtype)
    shared = {kind: tuple(each.to(dtype) for each in both) for kind, both in text.items()}
    position = torch.tensor([[text["full_attention"][0].shape[2]]])
    found, state = [], hidden.to(dtype)[None, None]
    for each in embedded.to(dtype):
        pair = torch.cat((each[None, None], state), dim=-1)
        with torch.no_grad():
            out = own(inputs_embeds=pair, position_ids=position, shared_kv_states=shared)
        found.append(out.logits[0, 0])
        state = out.last_hidden_state
    return torch.stack(found)


@pytest.mark.parametrize("size", [3, 17, 45])
def test_drafts_have_the_logits_of_transformers(model: Path, assistant: Path, size: int) -> None:
    """A window reaches to the position of the text's last token, which has no row yet."""
    runner, head = parts(drafting(model, assistant))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPTS[0][: size - 1])
    cache = cache_of(sequence)
    text: dict[str, Any] = {}
    for kind, layer in zip(("sliding_attention", "full_attention"), READ[model.name], strict=True):
        first = max(size - WINDOW, 0) if kind == "sliding_attention" else 0
        rows = cache.keys(layer), cache.values(layer)
        text[kind] = tuple(torch.from_numpy(each[None, :, first:].copy()) for each in rows)
    assert cache.hidden is not None
    hidden, tokens = torch.from_numpy(cache.hidden.copy()), [PROMPTS[0][size - 1], 3, 5, 8]
    found = of_all(head, head.begin([cache], tokens[:1]))
    for token in tokens[1:]:
        found += of_all(head, head.go_on([cache], [token]))
    head.end([cache])
    assert cache.tentative == 0 and cache.length == size - 1
    matrix = runner.decoder.matrix("embed")
    embedded = torch.from_numpy(unpack_rows(matrix, tokens)) * runner.decoder.embed_scale
    exact, same = (
        drafted(assistant, dtype, text, hidden, embedded)
        for dtype in (torch.float64, torch.float32)
    )
    for at, ours in enumerate(found):
        chosen = np.isfinite(ours)
        least = exact[at].min()
        assert chosen.all() or np.array_equal(chosen, (exact[at] > least).numpy())
        factor = 4 if at else 2  # later ones read what those before have left
        assert_matches(ours[chosen], exact[at][chosen], same[at][chosen], factor)
    runner.close(sequence)
    assert runner.arena.used == 0


def test_drafts_of_a_text_are_those_of_transformers(model: Path, assistant: Path) -> None:
    """From tokens alone, in a text that no window cuts."""
    runner, head = parts(drafting(model, assistant))
    sequence, text = runner.open("test", 120), PROMPTS[1][:WINDOW]
    runner.prefill(sequence, text[:-1])
    target = hf_reference.load(model, torch.float64)
    with torch.no_grad():
        out = target.model(torch.tensor([text[:-1]]), return_shared_kv_states=True)
        own = [text[-1]]
        for _ in range(4):
            embedded = target.model.embed_tokens(torch.tensor(own))
            hidden = out.last_hidden_state[0, -1]
            logits = drafted(assistant, torch.float64, out.shared_kv_states, hidden, embedded)
            own.append(int(logits[-1].argmax()))
    cache, token = cache_of(sequence), text[-1]
    found = [int(of_all(head, head.begin([cache], [token]))[0].argmax())]
    for _ in range(3):
        found.append(int(of_all(head, head.go_on([cache], found[-1:]))[0].argmax()))
    assert found == own[1:]
    runner.close(sequence)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_greedy_outputs_are_those_without_drafts(
    model: Path, assistant: Path, width: int, size: int
) -> None:
    params = GREEDY if width == 1 else dataclasses.replace(GREEDY, logprobs=None)
    plain = load(model).generate(PROMPTS, params)
    llm = drafting(model, assistant, max_num_seqs=size, speculation={"width": width})
    found = llm.generate(PROMPTS, params)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert all(each.speculation.num_draft_tokens > 40 for each in found)
    assert isinstance(llm.runner, Runner) and llm.runner.arena.used == 0


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8", "kv_cache_dtype": "int8", "dtype": "auto"},
        {"kv_cache_dtype": "float16"},
        {"growth": "bmc:rows=8"},
        {"threads": 2},
        {"prefill_chunk": 7},
        {"speculation": {"quantization": "int8"}},
        {"speculation": {"adaptive": True}},
        {"policy": "streaming:sinks=4,rank_only=true"},
        {"policy": "snapkv"},
        {"policy": "quest"},
        {"attention": "certified:eps=0.1"},
    ],
    ids=str,
)
def test_ways_to_run_the_model(gemma: Path, plain: Path, options: dict[str, Any]) -> None:
    same = {name: each for name, each in options.items() if name != "speculation"}
    wanted = load(gemma, **same).generate(PROMPTS, GREEDY)
    found = drafting(gemma, plain, **options).generate(PROMPTS, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in wanted]
    assert any(each.speculation.num_draft_tokens for each in found)


def test_drawn_results_do_not_depend_on_the_batch(gemma: Path, plain: Path) -> None:
    params = [dataclasses.replace(DRAWN, seed=seed) for seed in range(3)]
    alone = drafting(gemma, plain, max_num_seqs=1).generate(PROMPTS, params)
    batch = drafting(gemma, plain, max_num_seqs=3).generate(PROMPTS, params)
    assert [each.outputs for each in batch] == [each.outputs for each in alone]
    assert [each.speculation for each in batch] == [each.speculation for each in alone]


def test_samples_of_a_prompt_do_not_depend_on_the_batch(gemma: Path, plain: Path) -> None:
    params = dataclasses.replace(DRAWN, n=2)
    (alone,) = drafting(gemma, plain, max_num_seqs=2).generate(PROMPTS[:1], params)
    found = drafting(gemma, plain, max_num_seqs=4).generate(PROMPTS[:2], params)
    assert found[0].outputs == alone.outputs
    assert found[0].speculation == alone.speculation
    assert alone.speculation.num_draft_tokens > 40


def test_a_session(gemma: Path, plain: Path) -> None:
    check_turns(drafting(gemma, plain), load(gemma), PROMPTS[0][:20], GREEDY)


def test_drafts_do_not_depend_on_how_the_text_was_run(gemma: Path, plain: Path) -> None:
    """As a prompt, token by token after rejected drafts, by accepted ones, and in a copy."""
    runner, head = parts(drafting(gemma, plain))
    text = PROMPTS[2][:30]

    def drafts(sequence: Sequence) -> list[np.ndarray]:
        cache = cache_of(sequence)
        found = [*head.begin([cache], text[-1:]), *head.go_on([cache], [9])]
        head.end([cache])
        return found

    whole = runner.open("whole", 120)
    runner.prefill(whole, text[:-1])
    copy = runner.fork(whole, 20)
    assert cache_of(copy).hidden is None, "those of its last token are not known"
    runner.prefill(copy, text[20:-1])
    single = runner.open("single", 120)
    runner.prefill(single, text[:1])
    for token in text[1:-1]:
        runner.reserve(single, 2)
        runner.run([Rows(single, [token], drafts=Tree.chain([token ^ 1]))])
        runner.commit(single, [0])
    pairs = runner.open("pairs", 120)
    runner.prefill(pairs, text[:1])
    for at in range(1, len(text) - 1, 2):
        runner.reserve(pairs, 3)
        tree = Tree.chain([text[at + 1], text[at] ^ 1])
        runner.run([Rows(pairs, [text[at]], drafts=tree)])
        runner.commit(pairs, [0, 1])
    wanted = drafts(whole)
    for sequence in (copy, single, pairs):
        for ours, theirs in zip(drafts(sequence), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    whole.cache.truncate(12)
    assert cache_of(whole).hidden is None
    runner.prefill(whole, text[12:-1])
    np.testing.assert_array_equal(drafts(whole)[1], wanted[1])
    for sequence in (whole, copy, single, pairs):
        runner.close(sequence)
    assert runner.arena.used == 0


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_head_in_groups_reads_the_best_of_each_text(
    gemma: Path, tmp_path: Path, count: int, threads: int
) -> None:
    """Texts of a batch have logits of their own groups, as alone."""
    folder = assistants.make(tmp_path, gemma, groups=20, kept=2)
    runner, head = parts(drafting(gemma, folder, threads=threads))
    caches = []
    prompts = [[*PROMPTS[0][:9], at + 20] for at in range(count)]
    for prompt in prompts:
        sequence = runner.open("test", 120)
        runner.prefill(sequence, prompt[:-1])
        caches.append(cache_of(sequence))
    last = [prompt[-1] for prompt in prompts]
    together = head.begin(caches, last)
    alone = [head.begin([cache], [token])[0] for cache, token in zip(caches, last, strict=True)]
    np.testing.assert_array_equal(together, alone)
    kept = np.isfinite(together)
    assert (kept.sum(axis=1) == 2 * 16).all()
    assert len(np.unique(kept, axis=0)) > 1, "texts with groups of their own"
    for cache in caches:
        cache.close()


def test_a_prompt_hands_out_the_states_of_its_last_token_alone(
    gemma: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a prompt end before the layers that store nothing, as without drafts."""
    runner, head = parts(drafting(gemma, plain, prefill_chunk=10))
    asked: list[int] = []
    streams_of = head.streams_of

    def noted(batch: Any) -> np.ndarray:
        asked.extend(rows.streams for rows in batch)
        return streams_of(batch)

    monkeypatch.setattr(head, "streams_of", noted)
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPTS[0])
    assert sum(asked) == 1
    runner.reserve(sequence, 3)
    runner.run([Rows(sequence, [5], drafts=Tree.chain([6, 7]))])
    assert asked[-1] == 3, "any of them may become the last"
    runner.commit(sequence, [0, 1])
    assert cache_of(sequence).hidden is not None
    runner.close(sequence)


def test_states_that_are_no_numbers_give_no_drafts(gemma: Path, plain: Path) -> None:
    """The best groups of such scores are some groups; the step ends."""
    runner, head = parts(drafting(gemma, plain))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPTS[0][:20])
    cache = cache_of(sequence)
    cache._hidden = np.full_like(cache._hidden, np.nan)
    (logits,) = of_all(head, head.begin([cache], [5]))
    assert np.isnan(logits).sum() == 3 * 16 and np.isneginf(logits).sum() == len(logits) - 3 * 16
    head.end([cache])
    with pytest.raises(ValueError, match="a model that stores nothing has outputs"):
        head._native.step(
            [StepRows(cache, [5], outputs=0, exact=True, counted=False, reads_only=True)],
            hidden=np.zeros((1, 64), np.float32),
        )
    runner.close(sequence)
