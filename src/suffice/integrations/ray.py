"""Batches of requests on a Ray cluster, for programs: a callable for Ray Data, and a function.

Requests and results are OpenAI's batch format, as in `suffice batch`. A result depends on its
request, the model and the techniques alone: not on the cluster, nor on what died while it ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from suffice.integrations import missing

try:
    import ray  # noqa: F401
except ImportError as error:
    raise missing(error, "ray") from None

from suffice.engine.config import Config
from suffice.errors import InputError, brief, one_line
from suffice.serve.batch_file import Entry, entry_of, id_of, refusal
from suffice.serve.ray_batch import Engines, connected, fitting, lines
from suffice.serve.settings import Settings

_PLAIN = (str, int, float, type(None), Mapping)


class Answer(Engines):
    """A callable class for `Dataset.map_batches`: an actor with one engine.

    It takes a column of requests, each a line of JSON in OpenAI's batch format, and adds columns:
    `result`, the lines of the results, `model`, the fingerprint of the model and its options,
    `isa`, the instruction set, and `fault`, why the engine cannot be used; empty if it can. The
    requests of a batch run together:

        ray.data.read_text("requests.jsonl").map_batches(
            Answer,
            fn_constructor_kwargs={"model": "smollm2-135m", "threads": 2},
            batch_size=32,
            num_cpus=2,
            compute=ray.data.ActorPoolStrategy(size=4),
        )
    """

    def __init__(
        self,
        model: str,
        *,
        threads: int = 1,
        parallel: int = 32,
        column: str = "text",
        **options: Any,
    ) -> None:
        """Start an engine with options as those of `LLM`.

        `parallel` is how many samples decode together, `column` the one with the requests.

        Raises:
            InputError: An unknown option or a bad value.
        """
        super().__init__(_settings(model, parallel, options), threads, column)


def batch(
    requests: Iterable[Mapping[str, Any]],
    *,
    model: str,
    address: str | None = None,
    instances: int | None = None,
    threads: int | None = None,
    parallel: int = 32,
    **options: Any,
) -> list[dict[str, Any]]:
    """Answer requests on a cluster; return their results in their order.

    Args:
        requests: Objects of OpenAI's batch format: custom_id, method, url and body.
        model: A known name, a folder, a hub id or a .gguf file, on every node.
        address: Of the cluster; None for the one that this process has joined, for RAY_ADDRESS, for
            one of this machine, or else for a new one.
        instances: The most engines; None for as many as fit.
        threads: Cores of an engine; None for those of the smallest node.
        parallel: Samples that an engine decodes together.
        options: As those of `LLM`.

    Raises:
        InputError: An option, the model or the cluster cannot be used.
    """
    settings = _settings(model, parallel, options)
    given = [msgspec.json.encode(each) for each in requests]
    entries = [entry_of(number, line) for number, line in enumerate(given, 1)]
    _check_names(entries)
    results = {each.id: refusal(each) for each in entries if each.fault}
    good = [line for line, entry in zip(given, entries, strict=True) if not entry.fault]
    if good:
        with connected(address):
            found = lines(good, len(good), settings, fitting(threads, instances))
            results.update({id_of(line): line for line, *_ in found})
    return [msgspec.json.decode(results[each.id]) for each in entries]


def _check_names(entries: Iterable[Entry]) -> None:
    seen: set[str] = set()
    for name in (each.custom_id for each in entries if each.custom_id is not None):
        if name in seen:
            raise InputError(f"two requests have the same custom_id '{one_line(name, 60)}'")
        seen.add(name)


def _settings(model: str, parallel: int, options: Mapping[str, Any]) -> Settings:
    for name, value in options.items():
        if not isinstance(value, _PLAIN):
            raise InputError(f"{name}={brief(value)}: must be a text or a number, to be sent")
    own = {"model": model, "max_num_seqs": parallel, **options}
    Config.create(**own)  # refuses what is unknown or bad
    return Settings(
        model=model,
        options=own,
        max_num_seqs=parallel,
        share_prefixes=True,
        page=False,
        access_log=False,
    )
