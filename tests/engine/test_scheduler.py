"""The scheduler keeps its order and its limit for any sequence of requests."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fake_engine import fake_llm, runner_of
from suffice import SamplingParams
from suffice.engine.inputs import RequestMaker
from suffice.engine.request import Request
from suffice.engine.scheduler import Answer, Scheduler

SIZE = 4


class Comings(RuleBasedStateMachine):
    """Requests of 1 to SIZE samples arrive, start, lose samples, and are given up."""

    def __init__(self) -> None:
        super().__init__()
        llm = fake_llm(max_num_seqs=SIZE)
        self.maker = RequestMaker(llm.config, llm.tokenizer, llm.runner)
        self.scheduler = Scheduler(SIZE)
        self.requests: list[Request] = []
        self.started: list[Request] = []

    @rule(samples=st.integers(1, SIZE))
    def arrive(self, samples: int) -> None:
        request = self.maker.make("x", SamplingParams(n=samples))
        self.requests.append(request)
        self.scheduler.add(request)

    @rule()
    def start(self) -> None:
        waiting = [r for r in self.requests if r not in self.started and not r.finished]
        room = SIZE - len(self.scheduler.samples())
        request = self.scheduler.admit()
        if request is None:
            assert not waiting or len(waiting[0].samples) > room, "it would have fitted"
        else:
            assert request is waiting[0], "nobody overtakes"
            self.started.append(request)

    @precondition(lambda self: self.scheduler.samples())
    @rule(data=st.data())
    def finish_one(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.scheduler.samples())).finish("stop")
        self.scheduler.retire()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        for sample in data.draw(st.sampled_from(self.requests)).running:
            sample.finish("abort")
        self.scheduler.retire()

    @invariant()
    def batch_fits_and_holds_what_runs(self) -> None:
        batch = self.scheduler.samples()
        assert len(batch) <= SIZE
        assert batch == [sample for request in self.started for sample in request.running]

    @invariant()
    def idle_means_all_is_done(self) -> None:
        self.scheduler.retire()
        assert self.scheduler.idle == all(request.finished for request in self.requests)


TestComings = Comings.TestCase
TestComings.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(3, 6),
    st.integers(12, 60),
)
def test_every_request_ends_and_all_memory_comes_back(
    sizes: list[tuple[int, int]], most: int, memory: int
) -> None:
    llm = fake_llm(max_num_seqs=most, memory=memory)
    params = [SamplingParams(n=n, max_tokens=length) for n, length in sizes]
    outputs = llm.generate([[3, 4]] * len(sizes), params)
    runner = runner_of(llm)
    assert all(output.finished for output in outputs)
    assert (runner.memory, runner.open_sequences) == (memory, [])
    assert max(runner.batches, default=0) <= most
    for output, (_, length) in zip(outputs, sizes, strict=True):
        reasons = {sample.finish_reason for sample in output.outputs}
        assert ("abort" in reasons) == (output.error is not None)
        assert all(len(sample.token_ids) <= length for sample in output.outputs)


def test_who_waits_for_another_s_prompt_holds_up_nobody() -> None:
    """ "later" is of one request alone, "no" of all that wait."""
    llm = fake_llm(max_num_seqs=SIZE)
    maker, scheduler = RequestMaker(llm.config, llm.tokenizer, llm.runner), Scheduler(SIZE)
    first, second, third = requests = [maker.make("x", SamplingParams()) for _ in range(3)]
    for request in requests:
        scheduler.add(request)
    answers: dict[int, Answer] = {id(first): "later", id(second): "yes", id(third): "no"}
    assert scheduler.admit(lambda request: answers[id(request)]) is second
    assert (scheduler.deferred, scheduler.waiting) == (1, 2)
    answers[id(first)], answers[id(third)] = "no", "yes"
    assert scheduler.admit(lambda request: answers[id(request)]) is None
    assert scheduler.deferred == 0
    answers[id(first)] = "yes"
    assert scheduler.admit(lambda request: answers[id(request)]) is first
