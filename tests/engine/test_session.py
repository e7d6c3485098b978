"""A session runs only what its cache does not hold, and its results do not tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_engine import fake_llm, runner_of
from suffice import RequestOutput, SamplingParams
from suffice.engine.retained import CachedPrefix

LONG = SamplingParams(max_tokens=6, seed=2, ignore_eos=True)


def last(stream: Any) -> RequestOutput:
    return list(stream)[-1][1]


def test_what_a_prompt_shares_with_the_cache_is_not_run_again() -> None:
    llm = fake_llm()
    with llm.session() as session:
        first = last(session.stream([3, 4, 5], LONG))
        held = [3, 4, 5, *first.outputs[0].token_ids[:-1]]
        assert session.tokens == held
        prompt = [*held, first.outputs[0].token_ids[-1], 7, 8]
        second = last(session.stream(prompt, LONG))
        assert second.num_cached_tokens == len(held)
        assert runner_of(llm).prefilled[-1] == prompt[len(held) :]
        assert len(runner_of(llm).open_sequences) == 1
    assert runner_of(llm).open_sequences == []
    (fresh,) = fake_llm().generate([prompt], LONG)
    assert second.outputs == fresh.outputs


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [
        ([3, 4, 5], 2),  # the last token is always run
        ([3, 4], 1),
        ([3, 9, 5], 1),
        ([9], 0),
        ([9, 3, 4, 5], 0),
    ],
)
def test_a_different_prompt_cuts_the_cache_back(prompt: list[int], cached: int) -> None:
    llm = fake_llm()
    session = llm.session()
    last(session.stream([3, 4, 5], LONG))
    again = last(session.stream(prompt, LONG))
    assert again.num_cached_tokens == cached
    (fresh,) = fake_llm().generate([prompt], LONG)
    assert again.outputs == fresh.outputs


def test_a_chat_keeps_its_cache_from_turn_to_turn() -> None:
    llm = fake_llm()
    session = llm.session()
    talk = [{"role": "user", "content": "ab"}]
    answer = last(session.chat(talk, LONG)).outputs[0].text
    talk += [{"role": "assistant", "content": answer}, {"role": "user", "content": "x"}]
    assert last(session.chat(talk, LONG)).num_cached_tokens > 0


def test_an_interrupted_turn_leaves_a_usable_cache() -> None:
    llm = fake_llm()
    session = llm.session()
    runner_of(llm).interrupt_after = 2
    with pytest.raises(KeyboardInterrupt):
        list(session.stream([3, 4], LONG))
    tokens = session.tokens
    assert runner_of(llm).open_sequences[0].cache.tokens == tokens
    again = last(session.stream([*tokens, 8], LONG))
    assert again.num_cached_tokens == len(tokens) > 2
    assert again.outputs == fake_llm().generate([[*tokens, 8]], LONG)[0].outputs


def test_a_turn_that_runs_out_of_memory_does_not_end_the_session() -> None:
    llm = fake_llm(memory=12)
    session = llm.session()
    last(session.stream([3, 4], LONG))
    failed = last(session.stream([3] * 20, LONG))
    assert failed.error == "request 0 needs 20 rows"
    held = runner_of(llm).open_sequences[0].cache
    assert runner_of(llm).memory + held.bytes == 12, "the session keeps what it had"
    assert last(session.stream([3, 4], LONG)).error is None


def test_closing_starts_from_nothing() -> None:
    llm = fake_llm()
    session = llm.session()
    last(session.stream([3, 4, 5], LONG))
    session.close()
    assert session.tokens == []
    assert last(session.stream([3, 4, 5], LONG)).num_cached_tokens == 0


def test_two_turns_at_once_leave_one_cache() -> None:
    llm = fake_llm()
    session = llm.session()
    one, other = session.stream([3], LONG), session.stream([3, 4], LONG)
    next(one)
    next(other)
    assert last(other).outputs == fake_llm().generate([[3, 4]], LONG)[0].outputs
    assert last(one).outputs == fake_llm().generate([[3]], LONG)[0].outputs
    assert len(runner_of(llm).open_sequences) == 1
    session.close()
    assert runner_of(llm).open_sequences == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),  # tokens of the cache that the next prompt has
            st.lists(st.integers(2, 4), min_size=1, max_size=6),  # and its own
            st.booleans(),  # whether the turn is interrupted
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_turns_of_any_kind(turns: list[Any], stateful: bool) -> None:
    """The cache has the tokens that the session says, and each answer is that of a cold engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suffice.engine.request._TURN", 2)
        patch.setattr("suffice.engine.request._UNIT", 2)
        llm = fake_llm(stateful=stateful)
        session = llm.session()
        for kept, own, interrupted in turns:
            held = session.tokens
            prompt = [*held[:kept], *own]
            stream = session.stream(prompt, LONG)
            if interrupted:
                next(stream)
                stream.close()
            else:
                output = last(stream)
                assert output.outputs == fake_llm().generate([prompt], LONG)[0].outputs
                if kept >= len(held) or not stateful:  # where states can go on, too
                    assert output.num_cached_tokens >= min(kept, len(held))
            (sequence,) = runner_of(llm).open_sequences
            assert sequence.cache.tokens == session.tokens
        session.close()
        assert runner_of(llm).open_sequences == []


def test_shared_counts_the_common_beginning() -> None:
    assert CachedPrefix(None, [1, 2]).shared([1, 2, 3]) == 0, "no cache, nothing shared"
    assert CachedPrefix(object(), [1, 2]).shared([1, 2, 3]) == 2
    assert CachedPrefix(object(), [1, 2, 3, 4]).shared([1, 2]) == 1
    assert CachedPrefix(object(), [1, 2]).shared([2]) == 0
