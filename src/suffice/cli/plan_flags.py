"""The flags of `suffice plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from suffice.cli.flags import NUMBER, WHOLE, flag
from suffice.errors import InputError, OptionError

if TYPE_CHECKING:
    from suffice.plan.trace import Arrival

_OUTPUTS = ("md", "json")
_MOST = 100_000  # of engines, samples, requests that wait and cores: each costs memory
_WHOLE = {"instances": 1, "most": 1, "node_cores": 1, "parallel": 1, "max_queue": 0}  # the least
_MOST_MICROSECONDS = 1e7


@dataclass(frozen=True)
class LoadFlags:
    """What arrives: a file, or requests at random times."""

    trace: Annotated[
        Path | None,
        flag(
            "--trace",
            help='A request per line: {"arrival": 0.5, "prompt_tokens": 100, "output_tokens": 50}.',
            metavar="FILE",
            environment=False,
        ),
    ] = None
    rate: Annotated[
        float | None, flag("--request-rate", help="Without a file: requests per second.", **NUMBER)
    ] = None
    arrivals: Annotated[
        str, flag("--arrivals", help="Without a file: poisson, or bursts of --burst-size.")
    ] = "poisson"
    burst: Annotated[
        int, flag("--burst-size", help="Requests that arrive together in a burst.", **WHOLE)
    ] = 16
    requests: Annotated[int, flag("--num-prompts", help="Number of requests.", **WHOLE)] = 2000
    input_len: Annotated[int, flag("--input-len", help="Tokens of a prompt.", **WHOLE)] = 128
    output_len: Annotated[int, flag("--output-len", help="Tokens to generate.", **WHOLE)] = 128
    range_ratio: Annotated[
        float, flag("--range-ratio", help="Lengths vary by this share.", **NUMBER)
    ] = 0.0
    prefix_len: Annotated[
        int, flag("--prefix-len", help="Tokens before each prompt that prompts share.", **WHOLE)
    ] = 0
    prefixes: Annotated[
        int, flag("--num-prefixes", help="Number of different shared beginnings.", **WHOLE)
    ] = 1
    seed: Annotated[
        int,
        flag("--seed", help="Same seed, same requests; default: 0.", environment=False, **WHOLE),
    ] = 0

    @property
    def given(self) -> bool:
        """Whether there is a load."""
        return self.trace is not None or self.rate is not None

    def load(self) -> list[Arrival]:
        """Return the requests.

        Raises:
            InputError: A bad file or number, or there is not exactly one of file and rate.
        """
        from suffice.plan import trace

        if self.trace is not None:
            if self.rate is not None:
                raise InputError("--trace and --request-rate contradict each other: give one")
            return trace.read(self.trace)
        if self.rate is None:
            raise InputError("give --trace FILE or --request-rate N: what arrives")
        lengths = trace.Lengths(
            self.input_len, self.output_len, self.range_ratio, self.prefix_len, self.prefixes
        )
        return trace.made(self.arrivals, self.rate, self.requests, lengths, self.seed, self.burst)


@dataclass(frozen=True)
class PlanFlags:
    """The goals, the engines and the front."""

    slo: Annotated[
        str, flag("--slo", help="Goals of a request: ttft, tpot, gap, e2el, in s, ms or us.")
    ] = "ttft=1s,tpot=50ms"
    goal: Annotated[str, flag("--goal", help="The share of requests that must hold the goals.")] = (
        "99%"
    )
    instances: Annotated[
        int | None,
        flag("--instances", help="Simulate this number of engines; search no other.", **WHOLE),
    ] = None
    most: Annotated[
        int, flag("--most-instances", help="Search up to this number of engines.", **WHOLE)
    ] = 256
    cores: Annotated[
        str | None,
        flag("--cores", help="Cores of an engine, such as 2 or 4,8; default: those measured."),
    ] = None
    node_cores: Annotated[
        int | None,
        flag("--node-cores", help="Cores of a node; default: those of this machine.", **WHOLE),
    ] = None
    bandwidth: Annotated[
        float | None,
        flag(
            "--bandwidth",
            help="GB/s that a node reads from memory; default: this machine's, in proportion to "
            "its cores.",
            **NUMBER,
        ),
    ] = None
    parallel: Annotated[
        int,
        flag(
            "-np",
            "--parallel",
            "--max-num-seqs",
            help="Most samples that an engine decodes together.",
            **WHOLE,
        ),
    ] = 16
    max_queue: Annotated[
        int, flag("--max-queue", help="Most requests that wait; others are refused.", **WHOLE)
    ] = 256
    step_ms: Annotated[
        float,
        flag(
            "--step-ms",
            help="Milliseconds that prompts may delay the next token of others.",
            **NUMBER,
        ),
    ] = 40.0
    prefix_cache_bytes: Annotated[
        str | None,
        flag("--prefix-cache-bytes", help="Memory of kept caches, 0: none; default: 1GiB."),
    ] = None
    front_request_us: Annotated[
        float | None,
        flag(
            "--front-request-us",
            help="Microseconds of the front's CPU time for a request.",
            **NUMBER,
        ),
    ] = None
    front_token_us: Annotated[
        float | None,
        flag(
            "--front-token-us", help="Microseconds of the front's CPU time for a token.", **NUMBER
        ),
    ] = None
    front_apart: Annotated[
        bool, flag("--front-apart", help="Give the front a core of its own.")
    ] = False
    calibrate: Annotated[
        bool,
        flag(
            "--calibrate",
            help="Measure the model's steps here again; goes on with an interrupted measurement.",
        ),
    ] = False
    plot: Annotated[
        Path | None,
        flag("--plot", help="Write a picture, .png or .svg.", metavar="FILE", environment=False),
    ] = None
    output: Annotated[
        str, flag("-o", "--output", help="Format: md or json.", environment=False)
    ] = "md"

    def limits(self) -> dict[str, Any]:
        """Return an engine's limits, as the server has them.

        Raises:
            InputError: A value out of range.
        """
        from suffice.serve.settings import limits

        return limits(
            step_ms=self.step_ms,
            max_queued_tokens=None,
            prefix_cache_bytes=self.prefix_cache_bytes,
            allow_attention=(),
        )

    def check(self) -> None:
        """Refuse bad values before anything is measured.

        Raises:
            InputError: A value out of range.
        """
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= _MOST:
                raise OptionError(name, value, f"must be a whole number in [{least}, {_MOST}]")
        if self.bandwidth is not None and not 0 < self.bandwidth < float("inf"):
            raise OptionError("bandwidth", self.bandwidth, "must be a number of GB/s above 0")
        for name in ("front_request_us", "front_token_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < _MOST_MICROSECONDS:
                must = "must be microseconds, at least 0 and less than 10 seconds"
                raise OptionError(name, value, must)
        if self.output not in _OUTPUTS:
            raise OptionError("output", self.output, f"must be {' or '.join(_OUTPUTS)}")
        self.limits()
