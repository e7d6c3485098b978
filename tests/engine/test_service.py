"""An engine in a thread gives what `LLM.generate` gives, and nothing disturbs it.

Also tests work.py, job.py.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fake_engine import fake_llm, mixed, runner_of
from suffice import SamplingParams
from suffice.engine.service import Busy, Closed, Delta, Engine, Work
from suffice.errors import InputError

LONG = SamplingParams(max_tokens=9, seed=3, ignore_eos=True)


class Receiver:
    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.final is not None:
            self.done.set()

    def wait(self) -> Delta:
        assert self.done.wait(20), "no final delta came"
        return self.deltas[-1]

    def text(self, sample: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.sample == sample)

    def tokens(self, sample: int = 0) -> tuple[int, ...]:
        return tuple(t for d in self.deltas if d.sample == sample for t in d.tokens)


def slow(history: list[int]) -> Any:
    time.sleep(1e-3)
    return mixed(history)


@pytest.fixture
def llm() -> Any:
    return fake_llm()


@pytest.fixture
def engine(llm: Any) -> Iterator[Engine]:
    made = Engine(llm, max_queue=8)
    yield made
    made.close()


def test_deltas_add_up_to_what_generate_returns(engine: Engine) -> None:
    params = SamplingParams(n=3, max_tokens=9, seed=3, logprobs=2)
    receiver = Receiver()
    engine.submit(Work("a", (3, 4), params), receiver)
    final = receiver.wait().final
    (alone,) = fake_llm().generate([[3, 4]], params)
    for at, sample in enumerate(alone.outputs):
        own = [delta for delta in receiver.deltas if delta.sample == at]
        assert (receiver.text(at), receiver.tokens(at)) == (sample.text, sample.token_ids)
        assert (own[-1].finish_reason, own[-1].stop_reason) == (
            sample.finish_reason,
            sample.stop_reason,
        )
        entries = [entry for delta in own for entry in delta.logprobs or ()]
        assert [each[0].token for each in entries] == list(sample.token_ids)
        assert sample.logprobs is not None
        assert [{e.token: e.logprob for e in each} for each in entries] == [
            {token: found.logprob for token, found in each.items()} for each in sample.logprobs
        ]
    assert final is not None
    assert (final.prompt_tokens, final.error) == (2, None)
    assert final.generated_tokens == sum(len(sample.token_ids) for sample in alone.outputs)


def test_many_threads_get_what_they_would_get_alone(engine: Engine) -> None:
    receivers = [Receiver() for _ in range(6)]
    params = [SamplingParams(max_tokens=9, seed=seed, ignore_eos=True) for seed in range(6)]
    threads = [
        threading.Thread(target=engine.submit, args=(Work(str(at), (3, at), params[at]), receiver))
        for at, receiver in enumerate(receivers)
    ]
    for thread in threads:
        thread.start()
    for at, receiver in enumerate(receivers):
        receiver.wait()
        (alone,) = fake_llm().generate([[3, at]], params[at])
        assert receiver.text() == alone.outputs[0].text


def test_a_cancelled_request_ends_and_gives_its_memory_back() -> None:
    llm = fake_llm(slow)
    engine = Engine(llm)
    gone, stays = Receiver(), Receiver()
    endless = SamplingParams(max_tokens=60, seed=1, ignore_eos=True)
    engine.submit(Work("gone", (3,), endless), gone)
    engine.submit(Work("stays", (4,), LONG), stays)
    assert engine.cancel("gone")
    last = gone.wait()
    assert (last.finish_reason, last.final and last.final.error) == ("abort", None)
    stays.wait()
    assert stays.tokens() == fake_llm().generate([[4]], LONG)[0].outputs[0].token_ids
    assert not engine.cancel("gone"), "it is gone"
    engine.close()
    assert runner_of(llm).open_sequences == []


def test_a_deadline_ends_a_request_with_its_code() -> None:
    engine = Engine(fake_llm(slow))
    receiver = Receiver()
    engine.submit(
        Work("late", (3,), SamplingParams(max_tokens=60, ignore_eos=True), deadline=0.01), receiver
    )
    final = receiver.wait().final
    assert final is not None
    assert final.error == "the deadline of 0.01 s has passed"
    assert final.error_code == "deadline"
    engine.close()


def test_a_deadline_that_has_not_come_ends_nothing(engine: Engine) -> None:
    receiver = Receiver()
    engine.submit(Work("early", (3,), LONG, deadline=60.0), receiver)
    assert receiver.wait().finish_reason == "length"


def test_a_request_that_runs_can_be_cancelled() -> None:
    engine, begun = Engine(fake_llm(slow)), threading.Event()
    receiver = Receiver()

    def heard(delta: Delta) -> None:
        receiver(delta)
        begun.set()

    endless = SamplingParams(max_tokens=60, seed=1, ignore_eos=True)
    engine.submit(Work("gone", (3,), endless), heard)
    assert begun.wait(20) and engine.cancel("gone")
    assert receiver.wait().finish_reason == "abort"
    engine.close()


def test_bad_requests_are_refused_where_they_are_made(engine: Engine) -> None:
    with pytest.raises(InputError, match="not a token id"):
        engine.submit(Work("a", (99,), LONG), Receiver())
    with pytest.raises(InputError, match="the prompt is empty"):
        engine.submit(Work("a", (), LONG), Receiver())
    with pytest.raises(InputError, match="more than the 9 tokens asked for"):
        engine.submit(Work("a", (3,), LONG, known=((1,) * 10,)), Receiver())
    with pytest.raises(InputError, match="2 lists of tokens for 1 samples"):
        engine.submit(Work("a", (3,), LONG, known=((1,), (1,))), Receiver())
    receiver = Receiver()
    engine.submit(Work("a", (3,), LONG), receiver)
    receiver.wait()


def test_a_full_queue_says_so() -> None:
    held = threading.Event()

    def waits(history: list[int]) -> Any:
        held.wait(20)
        return mixed(history)

    engine = Engine(fake_llm(waits, max_num_seqs=1), max_queue=2)
    receivers = [Receiver() for _ in range(8)]
    with pytest.raises(Busy, match="2 requests are waiting already") as error:
        for at, receiver in enumerate(receivers):
            engine.submit(Work(str(at), (3,), LONG), receiver)
    assert error.value.wait > 0
    held.set()
    engine.close()


def test_the_same_id_twice_is_refused_until_the_first_has_ended() -> None:
    engine = Engine(fake_llm(slow))
    receiver = Receiver()
    engine.submit(Work("a", (3,), LONG), receiver)
    with pytest.raises(InputError, match="a request of this id is under way"):
        engine.submit(Work("a", (3,), LONG), Receiver())
    receiver.wait()
    again = Receiver()
    engine.submit(Work("a", (3,), LONG), again)
    assert again.wait().finish_reason == "length"
    engine.close()


def test_draining_ends_what_runs_and_takes_nothing_new() -> None:
    llm = fake_llm(slow)
    engine = Engine(llm)
    receiver = Receiver()
    engine.submit(Work("a", (3,), LONG), receiver)
    engine.drain()
    assert receiver.done.is_set()
    assert receiver.deltas[-1].finish_reason == "length"
    with pytest.raises(Closed):
        engine.submit(Work("b", (3,), LONG), Receiver())
    engine.close()


def test_closing_ends_everything_with_a_last_delta() -> None:
    llm = fake_llm(slow)
    engine = Engine(llm)
    receivers = [Receiver() for _ in range(3)]
    for at, receiver in enumerate(receivers):
        engine.submit(Work(str(at), (3,), SamplingParams(max_tokens=60, ignore_eos=True)), receiver)
    engine.close()
    for receiver in receivers:
        assert receiver.wait().finish_reason == "abort"
    assert runner_of(llm).open_sequences == []


def test_a_step_that_fails_ends_the_requests_of_it_and_no_others() -> None:
    broken = [True]

    def fails(history: list[int]) -> Any:
        if broken.pop() if broken else False:
            raise RuntimeError("a bug")
        return mixed(history)

    engine = Engine(fake_llm(fails))
    receiver = Receiver()
    engine.submit(Work("a", (3,), LONG), receiver)
    final = receiver.wait().final
    assert final is not None and final.error_code == "internal"
    again = Receiver()
    engine.submit(Work("b", (3,), LONG), again)
    assert again.wait().finish_reason == "length"
    engine.close()


def test_a_step_that_fails_leaves_those_who_wait() -> None:
    held, broken = threading.Event(), [True]

    def fails(history: list[int]) -> Any:
        held.wait(20)
        if broken.pop() if broken else False:
            raise RuntimeError("a bug")
        return mixed(history)

    engine = Engine(fake_llm(fails, max_num_seqs=1))
    runs, waits = Receiver(), Receiver()
    engine.submit(Work("runs", (3,), LONG), runs)
    engine.submit(Work("waits", (3,), LONG), waits)
    held.set()
    assert (final := runs.wait().final) is not None and final.error_code == "internal"
    assert waits.wait().finish_reason == "length"
    engine.close()


def test_a_receiver_that_fails_loses_its_own_request_alone(engine: Engine) -> None:
    def fails(delta: Delta) -> None:
        raise RuntimeError("gone")

    receiver = Receiver()
    engine.submit(Work("fails", (3,), SamplingParams(max_tokens=60, ignore_eos=True)), fails)
    engine.submit(Work("a", (3,), LONG), receiver)
    assert receiver.wait().finish_reason == "length"
    engine.drain()


def test_stats_tell_what_runs(engine: Engine) -> None:
    receiver = Receiver()
    engine.submit(Work("a", (3,), LONG), receiver)
    receiver.wait()
    engine.drain()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_bytes_used) == (0, 0, 0)
    assert stats.steps > 0
    assert stats.last_step_at <= time.monotonic()
    look = engine.look()
    speed = stats.tokens_per_second
    assert speed > 0
    assert dataclasses.replace(look.stats, tokens_per_second=speed) == stats
    nothing = [[0]]  # one layer and head, of a model that reads nothing
    assert (look.key_rows, look.value_rows, look.rows_held) == (nothing, nothing, nothing)
    assert look.missing == 0 and look.audit is None


def test_a_request_goes_on_after_what_another_engine_gave(engine: Engine) -> None:
    (whole,) = fake_llm().generate([[3, 4]], LONG)
    sample = whole.outputs[0]
    for known in (0, 1, 4, 8):
        receiver = Receiver()
        engine.submit(Work("a", (3, 4), LONG, known=(sample.token_ids[:known],)), receiver)
        receiver.wait()
        assert receiver.tokens() == sample.token_ids[known:]
        before = fake_llm().tokenizer.decode(list(sample.token_ids[:known]), skip_special=True)
        assert before + receiver.text() == sample.text


def test_a_second_request_uses_what_the_first_left() -> None:
    llm = fake_llm()
    llm.loop.retained.least = 4
    engine = Engine(llm, prefix_bytes=1000)
    for cached, reuse in ((0, True), (6, True), (0, False)):
        receiver = Receiver()
        engine.submit(Work("a", (3, 4, 5, 6, 7, 8, 9), LONG, reuse=reuse), receiver)
        final = receiver.wait().final
        assert final is not None and final.cached_tokens == cached
        assert (
            receiver.tokens()
            == fake_llm().generate([[3, 4, 5, 6, 7, 8, 9]], LONG)[0].outputs[0].token_ids
        )
    engine.drain()
    stats = engine.stats()
    assert (stats.prefix_hits, stats.prefix_queries, stats.prefix_entries) == (6, 14, 1)
    engine.close()
    assert runner_of(llm).open_sequences == []


def test_what_a_request_left_is_of_its_group_alone() -> None:
    """Others would learn from the time to the first token what was asked."""
    llm = fake_llm()
    llm.loop.retained.least = 4
    engine = Engine(llm, prefix_bytes=1000)
    for group, cached in (("a", 0), ("b", 0), ("", 0), ("a", 6), ("b", 6)):
        receiver = Receiver()
        engine.submit(Work("x", (3, 4, 5, 6, 7, 8, 9), LONG, group=group), receiver)
        final = receiver.wait().final
        assert final is not None and final.cached_tokens == cached
    engine.close()


def test_another_technique_than_the_engines_is_refused(engine: Engine) -> None:
    with pytest.raises(InputError, match="attention=aet: is not allowed; allowed are: exact"):
        engine.submit(Work("a", (3,), LONG, attention="aet"), Receiver())


def test_queued_tokens_are_limited_too() -> None:
    held = threading.Event()

    def waits(history: list[int]) -> Any:
        held.wait(20)
        return mixed(history)

    engine = Engine(fake_llm(waits, max_num_seqs=1), max_queued_tokens=10)
    with pytest.raises(Busy, match="tokens are waiting already"):
        for at in range(9):
            engine.submit(Work(str(at), (3, 4, 5), LONG), Receiver())
    held.set()
    engine.close()


def test_a_prompt_that_does_not_fit_the_queue_is_refused() -> None:
    held = threading.Event()

    def waits(history: list[int]) -> Any:
        held.wait(20)
        return mixed(history)

    engine = Engine(fake_llm(waits, max_num_seqs=1), max_queued_tokens=10)
    engine.submit(Work("runs", (3,) * 2, LONG), Receiver())
    engine.submit(Work("waits", (3,) * 4, LONG), Receiver())
    with pytest.raises(Busy, match="tokens are waiting already"):
        engine.submit(Work("too long", (3,) * 8, LONG), Receiver())
    held.set()
    engine.close()


def test_tokens_that_are_known_have_no_log_probabilities_here(engine: Engine) -> None:
    params = SamplingParams(max_tokens=9, seed=3, ignore_eos=True, logprobs=1)
    whole, rest = Receiver(), Receiver()
    engine.submit(Work("whole", (3, 4), params), whole)
    whole.wait()
    engine.submit(Work("rest", (3, 4), params, known=(whole.tokens()[:5],)), rest)
    final = rest.wait().final
    assert final is not None and final.error is None
    assert whole.tokens()[:5] + rest.tokens() == whole.tokens()
    entries = [entry for delta in rest.deltas for entry in delta.logprobs or ()]
    assert [entry[0].token for entry in entries] == list(rest.tokens())
