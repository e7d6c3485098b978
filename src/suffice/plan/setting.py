"""What is simulated: engines on nodes, and the one front before them."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.errors import OptionError
from suffice.plan.costs import Hardware
from suffice.plan.stored import Calibration


@dataclass(frozen=True)
class FrontCosts:
    """CPU seconds of the front, one process with one thread, as `benchmarks.serve.front` measures.

    Attributes:
        request: Of a request, from its body to its work for an engine, and of its end.
        token: Of a streamed token.
        instance: Of the router for a request, for every engine; `ticket` for every request that is
            under way in any of them, `block` for every 64 tokens of the prompt.
        link: From an engine's process to the front's, or back; no CPU time.
        client: Of a token, by a client on the same machine.
    """

    request: float = 600e-6
    token: float = 47e-6
    instance: float = 2.0e-6
    ticket: float = 0.35e-6
    block: float = 2.5e-6
    link: float = 100e-6
    client: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 10:
                raise OptionError(name, value, "must be seconds, at least 0")

    def routed(self, instances: int, tickets: int, prompt: int) -> float:
        """Return the seconds in which the router chooses."""
        if instances == 1:
            return 0.0
        blocks = self.block * (prompt // 64)
        return self.instance * instances + self.ticket * tickets + blocks


@dataclass(frozen=True)
class Setting:
    """Engines and the front.

    Attributes:
        instances: Engines, of `cores` cores each.
        per_node: Engines on a node, which share its memory's `bandwidth`, in bytes a second.
        alone: Bytes a second that one engine reads while the others of its node do nothing.
        front_apart: Whether the front has a core of its own. If not, it takes its time, and its
            clients' on the same machine, from the engines of the first node.
        places, max_queue, step_seconds, prefix_bytes, kv_cache_bytes: See `suffice serve`.
    """

    instances: int
    cores: float
    per_node: int
    bandwidth: float
    alone: float
    places: int = 16
    max_queue: int = 256
    step_seconds: float = 0.040
    prefix_bytes: int = 1 << 30
    kv_cache_bytes: int = 0
    front: FrontCosts = field(default_factory=FrontCosts)
    front_apart: bool = False

    def __post_init__(self) -> None:
        for name in ("instances", "per_node", "places"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "must be at least 1")
        for name in ("cores", "bandwidth", "alone", "step_seconds"):
            if not getattr(self, name) > 0:
                raise OptionError(name, getattr(self, name), "must be more than 0")

    def hardware(self, busy: int) -> Hardware:
        """Return what an engine has while `busy` engines of its node work, itself included."""
        return Hardware(self.cores, min(self.alone, self.bandwidth / max(busy, 1)))


def setting(
    calibration: Calibration,
    instances: int,
    cores: int | None = None,
    node_cores: int | None = None,
    bandwidth: float | None = None,
    **more: object,
) -> Setting:
    """Return a setting of nodes like this machine, or with other cores and bandwidth.

    `cores` are those of an engine (default: as calibrated), `node_cores` of a node (default: this
    machine's, or an engine's if that is more). Without a `bandwidth`, a node has this machine's in
    proportion to its cores. One engine alone reads at most `cores` times what one core reads here.

    Raises:
        InputError: A number out of range.
    """
    for name, number in (("node_cores", node_cores), ("bandwidth", bandwidth)):
        if number is not None and not number > 0:
            raise OptionError(name, number, "must be more than 0")
    own = cores or calibration.threads
    node = node_cores or max(calibration.cores, own)
    if own > node:
        raise OptionError("cores", own, f"must be at most node_cores={node}")
    scale = node / calibration.cores
    total = bandwidth or calibration.bandwidth * scale
    one = calibration.bandwidth_one * total / (calibration.bandwidth * scale)
    return Setting(
        instances=instances,
        cores=own,
        per_node=max(node // own, 1),
        bandwidth=total,
        alone=min(total, one * own),
        **more,  # type: ignore[arg-type]
    )
