"""`suffice batch`: answers a file of requests with the server's own routes, without a socket.

A result depends on its request alone. Ids, and seeds that are not given, follow from the request;
what differs from run to run (times, and what was taken from caches) is left out of the answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from suffice import native
from suffice.errors import InputError, one_line
from suffice.serve.app import build
from suffice.serve.batch_file import Entry, Requests, Results, parsed, refusal, result
from suffice.serve.errors import Problem
from suffice.serve.http.chance import named
from suffice.serve.http.models import Models
from suffice.serve.settings import Settings

AHEAD = 2  # requests under way for each place, so that none is empty
LONGEST_PAUSE = 5.0  # seconds before a request that found no memory is tried again
# Of an answer: what differs from run to run.
_VARYING = ("created", "created_at", "timings", "suffice")
_ROWS = ("prompt_rows_read", "prompt_rows_held")
_JSON = ((b"content-type", b"application/json"),)

Tell = Callable[["Counts"], None]


@dataclass
class Counts:
    """What has become of the requests of a run.

    Attributes:
        before: Results that were there.
        refused: Requests that were answered with an error.
        refusal: The first of them to be known, and why.
        tokens: Tokens generated.
        prompt_rows_read: Keys that tiles of prompts read, of `prompt_rows_held` that they saw.
    """

    total: int
    before: int
    answered: int = 0
    refused: int = 0
    refusal: str = ""
    tokens: int = 0
    prompt_rows_read: int = 0
    prompt_rows_held: int = 0

    @property
    def done(self) -> int:
        """Requests that have a result."""
        return self.before + self.answered + self.refused


class Record:
    """What has been answered: the file of results, and the counts."""

    def __init__(self, requests: Requests, results: Results, tell: Tell) -> None:
        todo = results.todo
        self.requests, self.results = requests, results
        self.counts = Counts(len(requests.entries), len(requests.entries) - len(todo))
        self._tell = tell

    def fault(self, entry: Entry) -> None:
        """Add the error of a line that is no request."""
        self.results.add(refusal(entry))
        self._refused(entry.custom_id, entry.fault)

    def answer(self, entry: Entry, line: bytes) -> None:
        """Add the result of a request."""
        self.results.add(line)
        response = msgspec.json.decode(line)["response"]
        if response["status_code"] == 200:
            self.counts.answered += 1
            usage = response["body"].get("usage") or {}
            self.counts.tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))
        else:
            self._refused(entry.custom_id, response["body"]["error"]["message"])
        self._tell(self.counts)

    def _refused(self, custom_id: str | None, why: str) -> None:
        if not self.counts.refused:
            named = "" if custom_id is None else f"'{one_line(custom_id, 60)}': "
            self.counts.refusal = named + one_line(why, 160)
        self.counts.refused += 1


Answer = Callable[[list[Entry], Record], None]  # answers requests, in any order


def run(answer: Answer, requests: Requests, results: Results, tell: Tell) -> Counts:
    """Answer the requests that have no result yet; `tell` gets the counts after each.

    Raises:
        KeyboardInterrupt: What is done is in the file; a second run goes on.
    """
    record, todo = Record(requests, results, tell), results.todo
    for entry in todo:
        if entry.fault:
            record.fault(entry)
    if todo := [entry for entry in todo if not entry.fault]:
        answer(todo, record)
    results.finish()
    return record.counts


def here(settings: Settings) -> Answer:
    """Return what answers requests with engines of this machine."""
    return lambda todo, record: asyncio.run(_answer_here(settings, todo, record))


async def _answer_here(settings: Settings, todo: list[Entry], record: Record) -> None:
    queue = iter(todo)  # which the workers share
    answers = Answers(settings)
    try:
        await answers.start()
        record.results.settle(answers.fingerprint, native.isa())
        with record.requests.path.open("rb") as file:

            async def work() -> None:
                for entry in queue:
                    url, body = parsed(record.requests.read(file, entry))
                    record.answer(entry, await answers.result(entry, url, body))

            await _all([work() for _ in range(answers.at_once)])
    finally:
        for name in _ROWS:
            setattr(record.counts, name, answers.prompt_rows[name])
        await answers.close()


class Answers:
    """Engines, and the server's routes before them, without a socket."""

    def __init__(self, settings: Settings) -> None:
        self._models = Models([settings])
        self._front = self._models.served[0].front
        self._app = build(self._models)
        self.at_once = AHEAD * self._front.places
        self.prompt_rows = Counter[str]()  # see `Counts`

    async def start(self) -> None:
        """Start the engines.

        Raises:
            InputError: The model cannot be used.
        """
        try:
            await self._models.start()
        except Problem as problem:
            raise InputError(problem.message) from None

    async def close(self) -> None:
        """Stop the engines."""
        await self._models.close()

    @property
    def fingerprint(self) -> str:
        """Of the model and the settings."""
        return self._front.facts.fingerprint

    async def result(self, entry: Entry, url: str, body: dict[str, Any]) -> bytes:
        """Return the line of a request's result.

        Raises:
            InputError: No engine can be kept alive.
        """
        status, found = await self._asked(url, body, entry.id)
        self.prompt_rows.update({name: found.get("suffice", {}).get(name, 0) for name in _ROWS})
        answer = {"status_code": status, "request_id": entry.id, "body": _lasting(found)}
        return result(entry, answer, None)

    async def _asked(self, url: str, body: Any, name: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an answer; wait while there is no memory for it."""
        if body.get("stream"):
            problem = Problem(
                "invalid_value", "stream=true: a batch has no streams", param="stream"
            )
            return problem.status, problem.body()
        raw, pause = msgspec.json.encode(body), 0.05
        while True:
            with named(name):
                status, answer = await posted(self._app, url, raw)
            if status != 503:
                return status, msgspec.json.decode(answer)
            if (why := self._front.instance.gone) is not None:
                raise InputError(why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


async def _all(work: list[Any]) -> None:
    """Run coroutines; if one fails, end the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _lasting(body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what differs from run to run."""
    found = {name: value for name, value in body.items() if name not in _VARYING}
    if isinstance(usage := found.get("usage"), dict):
        found["usage"] = {
            name: value
            for name, value in usage.items()
            if not isinstance(value, dict) and not name.startswith("cache_")
        }
    return found


async def posted(app: ASGIApp, path: str, body: bytes) -> tuple[int, bytes]:
    """Return the status and the body that an application answers to a posted JSON body."""
    status, parts, given = 500, [], False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # the client stays
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*_JSON, (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    return status, b"".join(parts)
