"""Decode steps of a model on a GPU, recorded as CUDA graphs and replayed while texts grow.

A step launches hundreds of small kernels, and a GPU waits for each launch. A graph launches all of
them at once. Its shapes are those of the caches' capacity, so it serves until they grow: there is
one graph for each capacity.

The first step with a capacity runs as usual, which also compiles the kernels; the second is
recorded. A step is not recorded if it is audited, is of several tokens, or has inputs that are
neither tensors nor plain values; nor if the caller wants gradients, or if its mask hides anything
but the padding that is known: a mask is looked at, which waits for the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple

import torch

from suffice.integrations.checks import given_cache
from suffice.integrations.device_requests import DeviceRequests
from suffice.integrations.native_cache import NativeCache

Replay = Callable[[], None]


class _Step(NamedTuple):
    """A recorded step: what it reads, how it is run again, and what it writes."""

    inputs: dict[str, torch.Tensor]
    replay: Replay
    output: Any


def recorded(run: Callable[[], Any]) -> tuple[Replay, Any]:
    """Record what `run` launches, and run it once; return how to do so again, and its output."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()
    graph.replay()
    return graph.replay, output


def with_graphs(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model's `forward` that records and replays decode steps."""
    names = list(inspect.signature(forward).parameters)
    steps = _Steps(forward)

    @wraps(forward)
    def stepping(*given: Any, **named: Any) -> Any:
        arguments = dict(zip(names, given, strict=False)) | named
        if "position_ids" not in names or not steps.serve(arguments):
            return forward(*given, **named)
        return steps.run(arguments)

    return stepping


class _Steps:
    """The recorded steps of one cache, which is the one that was used last."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._requests: DeviceRequests | None = None
        self._version = -1
        self._known: dict[Any, _Step | None] = {}  # None: has run once

    def serve(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a step can be recorded, or replayed."""
        cache, ids = given_cache(arguments)[1], arguments.get("input_ids")
        requests = cache.requests if isinstance(cache, NativeCache) else None
        if not isinstance(requests, DeviceRequests) or ids is None or torch.is_grad_enabled():
            return False
        mask = arguments.get("attention_mask")
        return (
            ids.shape[1] == 1
            and requests.can_replay(ids.shape[0])
            and (mask is None or requests.columns.continued(mask))
        )

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Run a step as usual, record it, or replay it."""
        name, cache = given_cache(arguments)
        requests: DeviceRequests = cache.requests
        inputs, others = _parted(arguments, requests)
        key = (
            tuple((each, x.shape, x.dtype) for each, x in sorted(inputs.items())),
            tuple(sorted((each, repr(x)) for each, x in others.items() if each != name)),
        )
        if requests is not self._requests or requests.version != self._version:
            self._requests, self._version, self._known = requests, requests.version, {}
        if key not in self._known:
            self._known[key] = None
            return self._forward(**arguments)
        step = self._known[key]
        requests.admit_step()
        if step is None:
            output = self._record(key, inputs, others, requests)
        else:
            for each, x in inputs.items():
                step.inputs[each].copy_(x)
            step.replay()
            requests.commit()
            output = step.output
        return _copied(output)

    def _record(
        self,
        key: Any,
        inputs: dict[str, torch.Tensor],
        others: dict[str, Any],
        requests: DeviceRequests,
    ) -> Any:
        own = {each: x.clone() for each, x in inputs.items()}
        try:
            replay, output = recorded(lambda: self._forward(**own, **others))
        except BaseException:
            requests.abandon()
            raise
        self._known[key] = _Step(own, replay, output)
        return output


def _parted(
    arguments: Mapping[str, Any], requests: DeviceRequests
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors that a step reads, and its other arguments.

    Padding is not stored, so there is no mask; positions are given, as the host knows them.
    """
    given = {name: x for name, x in arguments.items() if name != "attention_mask"}
    if given.get("position_ids") is None:
        ids = given["input_ids"]
        given["position_ids"] = torch.full((1, 1), requests.columns.count, device=ids.device)
    inputs = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    return inputs, {name: x for name, x in given.items() if name not in inputs}


def _copied(output: Any) -> Any:
    """Return a copy of what a graph writes; the next replay overwrites its tensors."""
    if isinstance(output, torch.Tensor):
        return output.clone()
    if isinstance(output, Mapping):
        return type(output)(**{name: _copied(x) for name, x in output.items()})
    return tuple(map(_copied, output)) if isinstance(output, tuple) else output
