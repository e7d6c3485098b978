"""The flags of `suffice plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cli.flags import flag
from suffice.errors import InputError, OptionError
from suffice.flags import again
from suffice.serve.settings import Limits, Settings

if TYPE_CHECKING:
    from suffice.plan.trace import Arrival

_OUTPUTS = ("md", "json")
_MOST = 100_000  # of engines, samples, requests that wait and cores: each costs memory
_WHOLE = {"instances": 1, "most": 1, "node_cores": 1, "parallel": 1, "max_queue": 0}  # the least
_MOST_MICROSECONDS = 1e7


@dataclass(frozen=True)
class LoadFlags:
    """What arrives: a file, or requests at random times."""

    trace: Path | None = flag(
        None,
        "--trace",
        'A request per line: {"arrival": 0.5, "prompt_tokens": 100, "output_tokens": 50}.',
        metavar="FILE",
        environment=False,
    )
    rate: float | None = flag(None, "--request-rate", "Without a file: requests per second.")
    arrivals: str = flag(
        "poisson", "--arrivals", "Without a file: poisson, or bursts of --burst-size."
    )
    burst: int = flag(16, "--burst-size", "Requests that arrive together in a burst.")
    requests: int = flag(2000, "--num-prompts", "Number of requests.")
    input_len: int = flag(128, "--input-len", "Tokens of a prompt.")
    output_len: int = flag(128, "--output-len", "Tokens to generate.")
    range_ratio: float = flag(0.0, "--range-ratio", "Lengths vary by this share.")
    prefix_len: int = flag(0, "--prefix-len", "Tokens before each prompt that prompts share.")
    prefixes: int = flag(1, "--num-prefixes", "Number of different shared beginnings.")
    seed: int = flag(0, "--seed", "Same seed, same requests; default: 0.", environment=False)

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

    slo: str = flag(
        "ttft=1s,tpot=50ms", "--slo", "Goals of a request: ttft, tpot, gap, e2el, in s, ms or us."
    )
    goal: str = flag("99%", "--goal", "The share of requests that must hold the goals.")
    instances: int | None = flag(
        None, "--instances", "Simulate this number of engines; search no other."
    )
    most: int = flag(256, "--most-instances", "Search up to this number of engines.")
    cores: str | None = flag(
        None, "--cores", "Cores of an engine, such as 2 or 4,8; default: those measured."
    )
    node_cores: int | None = flag(
        None, "--node-cores", "Cores of a node; default: those of this machine."
    )
    bandwidth: float | None = flag(
        None,
        "--bandwidth",
        "GB/s that a node reads from memory; default: this machine's, in proportion to its cores.",
    )
    parallel: int = again(Settings, "max_num_seqs")
    max_queue: int = again(Settings, "max_queue")
    step_ms: float = again(Limits, "step_ms")
    prefix_cache_bytes: str | None = again(Limits, "prefix_cache_bytes")
    front_request_us: float | None = flag(
        None, "--front-request-us", "Microseconds of the front's CPU time for a request."
    )
    front_token_us: float | None = flag(
        None, "--front-token-us", "Microseconds of the front's CPU time for a token."
    )
    front_apart: bool = flag(False, "--front-apart", "Give the front a core of its own.")
    calibrate: bool = flag(
        False,
        "--calibrate",
        "Measure the model's steps here again; goes on with an interrupted measurement.",
    )
    plot: Path | None = flag(
        None, "--plot", "Write a picture, .png or .svg.", metavar="FILE", environment=False
    )
    output: str = flag("md", "-o --output", "Format: md or json.", environment=False)

    def limits(self) -> dict[str, Any]:
        """Return an engine's limits, as the server has them.

        Raises:
            InputError: A value out of range.
        """
        return Limits(step_ms=self.step_ms, prefix_cache_bytes=self.prefix_cache_bytes).read()

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
