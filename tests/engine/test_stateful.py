"""The laws of the engine on models whose layers keep states, which go back only to kept lengths.

What a request finds of others is as much as was kept, and its bits are those of a cold engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny
from engines import run, sharing
from suffice import LLM, SamplingParams
from suffice.cache.kv import KVCache
from suffice.engine import request as requests
from suffice.engine.request import Request
from suffice.errors import InputError

CHUNK = 24  # tokens of a part of a prompt
PARAMS = SamplingParams(max_tokens=9, seed=1, ignore_eos=True, logprobs=1)
TEMPLATE = (  # the history has no thinking, a turn that begins has its mark
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
ASKED = (
    "The quick brown fox jumps over the lazy dog, and why? " * 4,
    "To be, or not to be, that is the question. " * 3,
    "a b c 1 2 3",
)
MOST_AGAIN = requests._TURN + requests._UNIT  # tokens before the end of the shared beginning
each_variant = pytest.mark.parametrize("variant", tiny.STATEFUL)
Make = Callable[..., LLM]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folders: dict[str, Path] = {}
    load = sharing(threads=1, dtype="float32", growth="step:rows=16", prefill_chunk=CHUNK)

    def made(variant: str, *, prefix: int | None = 0, **options: Any) -> LLM:
        if variant not in folders:
            folder = tmp_path_factory.mktemp(variant)
            tiny.make(folder, variant, tokenizer=True, max_position_embeddings=1024)
            (folder / "chat_template.jinja").write_text(TEMPLATE)
            folders[variant] = folder
        llm = load(folders[variant], **options)
        llm.loop.retained.limit = prefix
        return llm

    return made


def talk(turns: int) -> list[dict[str, str]]:
    """A conversation of some turns, without the last one's answer."""
    found = []
    for text in ASKED[:turns]:
        found += [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes: 42."}]
    return found[:-1]


def shared(one: list[int], other: list[int]) -> int:
    return next(i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])


def words(llm: LLM, count: int) -> list[int]:
    return (llm.tokenizer.encode("To be, or not to be, that is the question 0123456789. ") * 40)[
        :count
    ]


def cold(make: Make, variant: str, tokens: list[int], params: SamplingParams = PARAMS) -> Any:
    (found,) = make(variant).generate([tokens], params, use_tqdm=False)
    return found.outputs


def assert_goes_back_to_the_turn(prompts: list[list[int]], cached: list[int]) -> None:
    """Each turn runs its own part, the last answer, and few tokens before that."""
    assert cached[0] == 0
    for before, now, found in zip(prompts, prompts[1:], cached[1:], strict=False):
        common = shared(before, now)
        assert common > len(before) - requests._TURN, "the mark of a thought is dropped"
        assert common - MOST_AGAIN < found <= common


@each_variant
def test_a_session_goes_back_to_the_last_turn(make: Make, variant: str) -> None:
    llm, prompts, cached = make(variant), [], []
    with llm.session() as session:
        for turn in range(1, len(ASKED) + 1):
            *_, (_, output) = session.chat(talk(turn), PARAMS)
            prompts.append(list(output.prompt_token_ids))
            cached.append(output.num_cached_tokens)
            assert output.outputs == cold(make, variant, prompts[-1])
    assert_goes_back_to_the_turn(prompts, cached)
    assert llm.runner.memory_bytes[0] == 0


@each_variant
def test_the_store_goes_back_to_the_last_turn(make: Make, variant: str) -> None:
    llm, prompts, cached = make(variant, prefix=None), [], []
    for turn in range(1, len(ASKED) + 1):
        request = llm.maker.make(llm.chat_tokens(talk(turn)), PARAMS, reuse=True)
        run(llm, [request])
        prompts.append(request.tokens)
        cached.append(request.cached)
        assert request.output().outputs == cold(make, variant, request.tokens)
    assert_goes_back_to_the_turn(prompts, cached)


def test_a_session_that_keeps_no_state_runs_all_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KVCache, "keep_state", lambda self: None)
    with pytest.raises(AssertionError):
        test_a_session_goes_back_to_the_last_turn(make, "lfm2")


def begun_alike(llm: LLM, common: int) -> list[Request]:
    """Prompts that part after `common` tokens."""
    begin = words(llm, common)
    tails = [[*words(llm, 60)[at:], 5 + at] for at in range(4)]
    return [llm.maker.make([*begin, 7 + at, *tails[at]], PARAMS, reuse=True) for at in range(4)]


@each_variant
@pytest.mark.parametrize("together", [False, True])
def test_where_two_prompts_part_a_third_goes_on(make: Make, variant: str, together: bool) -> None:
    """One after the other, the second leaves the state; together, the first does."""
    llm = make(variant, prefix=None)
    common = 141
    made = begun_alike(llm, common)
    for batch in [made] if together else [[request] for request in made]:
        run(llm, batch)
    assert [request.cached for request in made] == [0, common if together else 0, common, common]
    ran = llm.loop.stats().prompt_tokens
    assert ran == sum(len(request.tokens) - request.cached for request in made)
    for request in made:
        assert request.output().outputs == cold(make, variant, request.tokens)


def test_a_prompt_leaves_a_state_where_it_parts_from_two_others(make: Make) -> None:
    """A tree of beginnings: each place where prompts parted is one to go on from."""
    llm = make("qwen3.5", prefix=None)
    trunk = words(llm, 100)
    long = [*trunk, 9, *words(llm, 100)]
    made = [
        llm.maker.make(tokens, PARAMS, reuse=True)
        for tokens in (
            [*long, 11, *words(llm, 50)],
            [*trunk, 10, *words(llm, 50)],  # leaves a state after the trunk
            [*long, 12, *words(llm, 50)],  # from the trunk on; leaves one where it parts
            [*long, 13, *words(llm, 50)],
            [*trunk, 14, *words(llm, 50)],
        )
    ]
    for request in made:
        run(llm, [request])
        assert request.output().outputs == cold(make, "qwen3.5", request.tokens)
    assert [request.cached for request in made] == [0, 0, 100, 201, 100]


@each_variant
@pytest.mark.parametrize("kept", [None, 0])
def test_a_client_that_leaves_within_a_prompt(make: Make, variant: str, kept: int | None) -> None:
    llm = make(variant, prefix=kept)
    llm.loop.turns.step_seconds = 0.0  # a part of a prompt in a step
    tokens = [*words(llm, 200), 7]
    gone, again = (llm.maker.make(tokens, PARAMS, reuse=True) for _ in range(2))
    llm.loop.add(gone)
    while not gone.begun or gone.left > 60:
        llm.loop.step()
    ran = len(tokens) - gone.left
    assert CHUNK < ran < len(tokens)
    llm.loop.abort(gone)
    assert kept is None or llm.runner.memory_bytes[0] == 0
    run(llm, [again])
    assert again.cached == (ran if kept is None else 0)
    assert again.output().outputs == cold(make, variant, tokens)
    llm.loop.retained.clear()
    assert llm.runner.memory_bytes[0] == 0


def parked_often(llm: LLM, made: list[Request]) -> None:
    def park(step: int) -> None:
        running = llm.loop.scheduler.running
        if step % 3 == 0 and step < 60 and running:
            llm.loop.memory.park(running[step % len(running)])

    run(llm, made, park)
    llm.loop.retained.clear()
    assert llm.runner.memory_bytes[0] == 0, "all memory came back"


@each_variant
@pytest.mark.parametrize("kept", [None, 0])
def test_parked_within_prompts_that_begin_alike(make: Make, variant: str, kept: int | None) -> None:
    llm = make(variant, prefix=kept, speculative_config="ngram:adaptive=false")
    llm.loop.turns.step_seconds = 0.0
    made = begun_alike(llm, 141)
    parked_often(llm, made)
    assert sum(request.preemptions for request in made) > 3
    for request in made:
        assert request.error is None
        assert request.output().outputs == cold(make, variant, request.tokens)


def least_limit(make: Make, variant: str, tokens: list[int]) -> int:
    """The least bytes, nearly, in which a request gets its answer if nothing is kept of it."""
    limit = 1 << 16
    while True:
        llm = make(variant, kv_cache_bytes=limit)
        (found,) = llm.generate([tokens], PARAMS, use_tqdm=False)
        if found.error is None:
            return limit
        limit += 1 << 13


@each_variant
def test_a_limit_without_room_for_copies(make: Make, variant: str) -> None:
    """A request that fits alone ends with its own text, whatever the others wanted to keep."""
    tokens = begun_alike(make(variant), 141)[0].tokens
    limit = least_limit(make, variant, tokens)
    llm = make(variant, prefix=None, kv_cache_bytes=limit, max_num_seqs=3)
    made = begun_alike(llm, 141)
    run(llm, made)
    for request in made:
        assert request.error is None
        assert request.output().outputs == cold(make, variant, request.tokens)
    llm.loop.retained.clear()
    assert llm.runner.memory_bytes[0] == 0


def test_where_nobody_goes_on_nothing_is_copied(make: Make) -> None:
    """Neither in a session nor in the store."""
    llm = make("lfm2")
    request = llm.maker.make(words(llm, 150), PARAMS)
    llm.loop.add(request)
    while not request.samples[0].tokens:
        llm.loop.step()
    assert request.leader.sequence.cache.native.kept_states == []
    llm.loop.abort(request)


def test_drafts_of_the_model_itself_are_refused_in_one_line(make: Make) -> None:
    with pytest.raises(InputError) as error:
        make("lfm2", speculative_config="self:recent=16")
    line = str(error.value)
    assert line.startswith("speculator 'self': ") and line.count("speculator") == 1
    assert "has layers that keep states" in line
