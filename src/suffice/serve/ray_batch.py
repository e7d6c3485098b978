"""Batches over Ray Data: a pool of engines, which requests are handed to one by one.

A task is a request, so a result is there as soon as it is whole, and what a node that dies takes
with it is what ran there. A result depends on its request alone: one that is run twice is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.exceptions import RayError

from suffice import native
from suffice.errors import InputError, one_line
from suffice.serve.batch import AHEAD, Answer, Answers, Record
from suffice.serve.batch_file import Entry, entry_of, id_of, parsed, refusal
from suffice.serve.ray_arguments import check_address
from suffice.serve.settings import Settings

MOST_TASKS = 10_000  # a task is several requests where there are more
RESULT, MODEL, ISA, FAULT = "result", "model", "isa", "fault"  # columns


class Engines:
    """A callable class for `Dataset.map_batches`: one engine in an actor's process.

    Takes a column of requests, lines in OpenAI's batch format; adds the columns `result`, the lines
    of results, `model`, the fingerprint of the model and the setting, `isa`, the instruction set,
    and `fault`, why the engine cannot be used; empty if it can.
    """

    def __init__(self, settings: Settings, threads: int, column: str) -> None:
        self._column, self._fault = column, ""
        options = {**settings.options, "threads": threads}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        try:
            self._answers = Answers(dataclasses.replace(settings, options=options))
            self._done(self._answers.start())
        except InputError as error:  # told as a value: an actor whose start fails is started again
            self._fault = str(error)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a batch of requests, all at the same time; returns them in their order."""
        lines = [str(line).encode() for line in batch[self._column]]
        fault, found = self._fault, [b""] * len(lines)
        if not fault:
            try:
                found = self._done(self._all(lines))
            except InputError as error:
                fault = str(error)
        return {
            **batch,
            RESULT: [each.decode() for each in found],
            MODEL: ["" if fault else self._answers.fingerprint] * len(lines),
            ISA: [native.isa()] * len(lines),
            FAULT: [fault] * len(lines),
        }

    async def _all(self, lines: list[bytes]) -> list[bytes]:
        return list(await asyncio.gather(*map(self._one, lines)))

    async def _one(self, line: bytes) -> bytes:
        entry = entry_of(1, line)
        if entry.fault:
            bare = entry.fault.partition(": ")[2]  # without the line's number
            return refusal(dataclasses.replace(entry, fault=bare))
        return await self._answers.result(entry, *parsed(line))

    def _done(self, work: Any) -> Any:
        """Return what a coroutine gives in the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@dataclass(frozen=True)
class Pool:
    """How many engines there are, of how many cores."""

    size: int
    threads: int


def fitting(threads: int | None, most: int | None) -> Pool:
    """Return the pool that fills the cluster, or has at most `most` engines.

    Without `threads`, an engine has the cores of the smallest node that has any.

    Raises:
        InputError: No node has as many cores.
    """
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    cores = [int(count) for count in nodes if count >= 1]
    if not cores:
        raise InputError("the Ray cluster has no CPUs")
    threads = threads or min(cores)
    if threads > max(cores):
        raise InputError(f"threads={threads}: no node of the cluster has more than {max(cores)}")
    size = sum(count // threads for count in cores)
    return Pool(min(size, most or size), threads)


def answered(
    requests: Dataset, settings: Settings, pool: Pool, column: str, rows: int = 1
) -> Dataset:
    """Return a dataset of requests with their results; see `Engines` for the columns."""
    at_once = max(1, AHEAD * settings.max_num_seqs // rows)
    return requests.map_batches(
        Engines,
        fn_constructor_args=(settings, pool.threads, column),
        batch_size=None,
        zero_copy_batch=False,
        num_cpus=pool.threads,
        compute=ActorPoolStrategy(
            min_size=1,
            max_size=pool.size,
            initial_size=pool.size,
            max_tasks_in_flight_per_actor=at_once,
            max_concurrent_calls_per_actor=at_once,
            enable_true_multi_threading=True,
        ),
    )


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster, unless connected; one that is made for it ends with it.

    Raises:
        InputError: There is none at the address.
    """
    if ray.is_initialized():
        yield
        return
    if address is not None:
        check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is made here
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # this process's part of Ray is quiet
    try:
        with _muted():
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RayError, ValueError) as error:
        raise InputError(f"--ray {address or ''}: {one_line(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Drop what native code writes to standard error, such as the level of its log."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def quiet() -> None:
    """Have Ray Data say nothing of itself: progress is shown by who asks for the results."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def lines(
    given: Iterable[bytes], count: int, settings: Settings, pool: Pool
) -> Iterator[tuple[bytes, str, str]]:
    """Answer lines of requests; yield results, models and instruction sets as they come.

    Raises:
        InputError: The model cannot be used.
    """
    quiet()
    tasks = min(count, MOST_TASKS)
    items = [{"text": line.decode()} for line in given]
    dataset = ray.data.from_items(items, override_num_blocks=tasks)
    del items
    for row in answered(dataset, settings, pool, "text", -(-count // tasks)).iter_rows():
        if row[FAULT]:
            raise InputError(row[FAULT])
        yield row[RESULT].encode(), row[MODEL], row[ISA]


def on_cluster(
    settings: Settings, address: str | None, *, threads: int | None, most: int | None
) -> Answer:
    """Return what answers the requests of `suffice batch` on a cluster."""

    def answer(todo: list[Entry], record: Record) -> None:
        entries = {entry.id: entry for entry in todo}
        requests = record.requests
        with connected(address), requests.path.open("rb") as file:
            given = (requests.read(file, entry) for entry in todo)
            seen: set[str] = set()
            pool = fitting(threads, most)
            for line, model, isa in lines(given, len(todo), settings, pool):
                if not seen:
                    record.results.settle(model, isa)
                seen.add(isa)
                if len(seen) > 1:
                    raise InputError(
                        f"the nodes have instruction sets that round differently "
                        f"({', '.join(sorted(seen))}): set SUFFICE_ISA to one that all have"
                    )
                record.answer(entries[id_of(line)], line)

    return answer
