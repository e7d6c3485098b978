"""An engine on a clock: the real decode loop, with a runner that only takes time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from suffice.engine.config import Config
from suffice.engine.inputs import RequestMaker
from suffice.engine.loop import Loop
from suffice.engine.request import Request
from suffice.errors import InputError
from suffice.plan.costs import Hardware
from suffice.plan.runner import Clock, NoText, SimulatedRunner
from suffice.plan.setting import Setting
from suffice.plan.stored import Calibration
from suffice.sampling_params import SamplingParams
from suffice.serve.processes import wire
from suffice.serve.processes.pending import Tickets
from suffice.serve.processes.router import Rates
from suffice.speculate.budget import Budget
from suffice.speculate.none import NoDrafts

if TYPE_CHECKING:
    from suffice.engine.protocol import Tokenizer


@dataclass
class News:
    """What a step gave a request: how many tokens, and whether it has ended, perhaps of an error.

    `queued` are the seconds that it has waited for its start.
    """

    id: str
    tokens: int
    ended: bool
    error: str | None
    queued: float


@dataclass
class _Job:
    request: Request
    sent: int = 0


class SimulatedInstance:
    """An engine; `hardware` says what it has when a call is made.

    Attributes:
        tickets: What the front has handed to it and not seen the end of.
        at_work: Whether a step is under way.
        most_waiting: The largest number of requests that waited at the end of a step.
    """

    def __init__(
        self, calibration: Calibration, setting: Setting, hardware: Callable[[], Hardware]
    ) -> None:
        self.clock = Clock()
        self.tickets = Tickets()
        self.at_work = False
        self.most_waiting = 0
        self._costs = calibration.costs
        self.runner = SimulatedRunner(
            calibration.model, calibration.costs, self.clock, hardware, setting.kv_cache_bytes
        )
        text = cast("Tokenizer", NoText())  # the rest of a tokenizer is for texts
        config = Config.create(
            calibration.model.name,
            seed=0,
            max_num_seqs=setting.places,
            max_model_len=calibration.model.context,
        )
        self._maker = RequestMaker(config, text, self.runner)
        self.loop = Loop(
            self.runner,
            text,
            Budget(NoDrafts()),
            max_num_seqs=setting.places,
            max_model_len=calibration.model.context,
            step_seconds=setting.step_seconds,
            prefix_bytes=setting.prefix_bytes,
            clock=self.clock,
        )
        self._inbox: list[tuple[float, wire.Submit]] = []
        self._jobs: dict[str, _Job] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._jobs or self._inbox)

    @property
    def rates(self) -> Rates | None:
        """How fast it is, as its loop has measured: a server hears it a little later."""
        times = self.loop.turns.times
        step, row = times.line()
        return Rates(times.token, step, row) if times.token and step + row else None

    def deliver(self, now: float, work: wire.Submit) -> None:
        """Hand it a request, which it sees before its next step."""
        self._inbox.append((now, work))

    def step(self, now: float, taken: float = 0.0) -> list[News]:
        """Run a step that begins at `now`; the clock then shows its end.

        `taken` are seconds that others take from its cores: threads of a step wait for each other,
        so that it becomes longer by as much.
        """
        news = self._taken()
        self.clock.now = now
        self.runner.decoded = 0
        self.loop.step()
        self.runner.spend(self._costs.overhead(self.runner.decoded) + taken)
        self.most_waiting = max(self.most_waiting, self.loop.scheduler.waiting)
        for id, job in list(self._jobs.items()):
            sample = job.request.samples[0]
            new, job.sent = len(sample.tokens) - job.sent, len(sample.tokens)
            ended = sample.finish_reason is not None
            if new or ended:
                queued = job.request.metrics.queue_seconds
                news.append(News(id, new, ended, job.request.error, queued))
            if ended:
                del self._jobs[id]
        return news

    def _taken(self) -> list[News]:
        """Queue what has come; return what is refused."""
        inbox, self._inbox = self._inbox, []
        refused = []
        for at, work in inbox:
            self.clock.now = at
            try:
                request = self._maker.make(
                    work.prompt,
                    SamplingParams(**work.params),
                    priority=work.priority,
                    key=work.key,
                    reuse=work.reuse,
                    group=work.group,
                    clock=self.clock,
                )
            except InputError as error:
                refused.append(News(work.id, 0, True, str(error), 0.0))
                continue
            self.loop.add(request)
            self._jobs[work.id] = _Job(request)
        return refused
