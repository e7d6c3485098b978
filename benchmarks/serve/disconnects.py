"""Whether a request's work ends when its client leaves: 200 disconnects in every phase.

    python -m benchmarks.serve.disconnects             5 x 200 (about 15 minutes)
    python -m benchmarks.serve.disconnects --each 10

A client leaves while its request waits, while its prompt runs, while it decodes, while its schema
is compiled, and between the turns of a conversation, as its second request arrives. Another stream
decodes all the time, so that the engine steps. Counted are the steps that ran with the request's
work after its client left, the step under way included. Afterwards no byte of keys and values may
be held. Results go to benchmarks/serve/results/disconnects.json and disconnects.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.serve.servers import Kind, Place, Server
from suffice import pull

MODEL = "smollm2-135m"
SAMPLES = 3
MOST_STEPS = 2
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


Note = tuple[float, int, str, str]  # time, step, id, event


@dataclass(frozen=True)
class Sizes:
    """Words of a long prompt, and tokens of an answer that is still going on when left."""

    prompt: int = 1500
    output: int = 4000


@dataclass
class Scene:
    """A server, its engine's notes, and when clients left, by request id."""

    server: Server
    log: Path
    sizes: Sizes
    rng: random.Random
    left: dict[str, tuple[str, float]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _count: int = 0
    _read: int = 0
    _events: set[tuple[str, str]] = field(default_factory=set)

    def ident(self) -> str:
        """Return a new request id."""
        self._count += 1
        return f"r{self._count}"

    def ask(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request and return its connection."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        link = socket.create_connection(("127.0.0.1", self.server.port), timeout=120)
        link.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return link

    def stream(self, ident: str, words: int, **fields: Any) -> socket.socket:
        """Send a request for a long stream."""
        text = " ".join(str(self.rng.randrange(10)) for _ in range(words))
        body = {"request_id": ident, "prompt": text, "stream": True, "ignore_eos": True}
        return self.ask(COMPLETION, body | {"max_tokens": self.sizes.output} | fields)

    def leave(self, phase: str, ident: str, link: socket.socket) -> None:
        """Close a connection, and note when."""
        link.close()
        self.left[ident] = phase, time.monotonic()

    def read(self) -> None:
        """Read the engine's new notes."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        for line in lines.decode().splitlines():
            at, step, ident, event = line.split()
            self.notes.append((float(at), int(step), ident, event))
            self._events.add((ident, event))

    def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: It does not come true.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("a phase did not come")
            time.sleep(0.002)

    def seen(self, ident: str, event: str) -> bool:
        """Return whether an event was noted for a request."""
        self.read()
        return (ident, event) in self._events


def queued(scene: Scene) -> None:
    """Leave while all places are taken; then those who have them leave, too."""
    blockers = [(each, scene.stream(each, 4)) for each in (scene.ident() for _ in range(2))]
    for each, _ in blockers:
        scene.until(lambda each=each: scene.seen(each, "token"))  # type: ignore[misc]
    ident = scene.ident()
    link = scene.stream(ident, 4)
    scene.until(lambda: scene.seen(ident, "submit"))
    scene.leave("queued", ident, link)
    for each, own in blockers:
        scene.leave("decoding", each, own)


def prompt(scene: Scene) -> None:
    """Leave while a long prompt runs."""
    ident = scene.ident()
    link = scene.stream(ident, scene.sizes.prompt)
    scene.until(lambda: scene.seen(ident, "submit"))
    time.sleep(scene.rng.uniform(0, 0.2))
    scene.leave("prompt", ident, link)


def decoding(scene: Scene) -> None:
    """Leave in the midst of an answer, whole or streamed."""
    ident = scene.ident()
    link = scene.stream(ident, 4, stream=scene.rng.random() < 0.5)
    scene.until(lambda: scene.seen(ident, "token"))
    time.sleep(scene.rng.uniform(0, 0.1))
    scene.leave("decoding", ident, link)


def compiling(scene: Scene) -> None:
    """Leave while a schema is checked or compiled."""
    ident = scene.ident()
    fields = {f"{ident}{at}": {"type": "string", "pattern": "^[a-z]{1,30}$"} for at in range(60)}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    link = scene.stream(ident, 4, structured_outputs={"json": schema}, ignore_eos=False)
    time.sleep(scene.rng.uniform(0, 0.1))
    scene.leave("compiling", ident, link)


def between(scene: Scene) -> None:
    """Finish a turn, send the next over the same connection, and leave at once."""
    talk = [{"role": "user", "content": "a b c"}]
    body = {"messages": talk, "max_tokens": 4, "stream": False}
    link = scene.ask(CHAT, body)
    answer = b""
    while b'"usage"' not in answer:
        answer += link.recv(65536)
    ident = scene.ident()
    talk += [{"role": "assistant", "content": "d"}, {"role": "user", "content": "e f"}]
    more = {"messages": talk, "max_tokens": scene.sizes.output, "request_id": ident}
    data = json.dumps(more | {"stream": True, "ignore_eos": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    if scene.rng.random() < 0.7:  # the others leave without a second request
        link.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(scene.rng.uniform(0, 0.03))
    scene.leave("between", ident, link)


PHASES: dict[str, Callable[[Scene], None]] = {
    "queued": queued,
    "prompt": prompt,
    "decoding": decoding,
    "compiling": compiling,
    "between": between,
}


@contextlib.contextmanager
def stage(place: Place, sizes: Sizes, seed: int) -> Iterator[Scene]:
    """Start a server whose engine is watched."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "notes"
        log.touch()

        def command(own: Place) -> list[str]:
            module = [sys.executable, "-m", "benchmarks.serve.engines.watched"]
            return [*module, str(own.gguf), str(own.port), str(log), str(SAMPLES)]

        server = Server("watched", place, Kind("watched", command))
        try:
            yield Scene(server, log, sizes, random.Random(seed))
        finally:
            server.close()


def run(place: Place, each: int, sizes: Sizes, seed: int = 0) -> dict[str, Any]:
    """Leave `each` times in every phase; return the steps that ran on, and the bytes left."""
    with stage(place, sizes, seed) as scene:
        steps: dict[str, Counter[int]] = {phase: Counter() for phase in PHASES}
        for act in PHASES.values():
            for _ in range(each):
                _turn(scene, act)
        for ident, more in steps_after(scene.notes, scene.left).items():
            steps[scene.left[ident][0]][more] += 1
        end = time.monotonic() + 20
        while (held := _held(scene.server.metrics())) and time.monotonic() < end:
            time.sleep(0.1)
    return {
        "steps": {
            phase: {str(more): found[more] for more in sorted(found)}
            for phase, found in steps.items()
        },
        "disconnects": len(scene.left),
        "late": sum(
            count for found in steps.values() for more, count in found.items() if more > MOST_STEPS
        ),
        "left": held,
    }


def _turn(scene: Scene, act: Callable[[Scene], None]) -> None:
    """Let another stream decode while a client comes and leaves."""
    companion = f"companion-{scene.ident()}"
    link = scene.stream(companion, 4)
    scene.until(lambda: scene.seen(companion, "token"))
    before = set(scene.left)
    act(scene)
    for ident in set(scene.left) - before:
        scene.until(lambda ident=ident: not _under_way(scene, ident), 30)  # type: ignore[misc]
    link.close()
    scene.until(lambda: not _under_way(scene, companion), 30)


def _under_way(scene: Scene, ident: str) -> bool:
    return scene.seen(ident, "submit") and not scene.seen(ident, "end")


def _held(metrics: dict[str, float]) -> dict[str, float]:
    """Return what is left of requests."""
    names = ("kv_cache_bytes_used", "num_requests_running", "num_requests_waiting")
    return {name: metrics[name] for name in names if metrics[name]}


def steps_after(notes: list[Note], left: dict[str, tuple[str, float]]) -> dict[str, int]:
    """Return how many steps ran with each request's work after its client left.

    The notes of a step have the number of the step before it. A request's end is noted after the
    first step without it.
    """
    found = {}
    ends = {ident: step for _, step, ident, event in notes if event == "end"}
    submits = {ident: (at, step) for at, step, ident, event in notes if event == "submit"}
    for ident, (_, since) in left.items():
        if ident not in submits:  # it left before there was work
            found[ident] = 0
            continue
        submitted, step = submits[ident]
        tokens = [own for at, own, _, event in notes if event == "token" and at <= since]
        last = step - 1 if submitted > since else max(step - 1, tokens[-1])
        found[ident] = max(0, ends.get(ident, 10**9) - last - 1)
    return found


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    steps = data["found"]["steps"]
    most = max(int(more) for found in steps.values() for more in found)
    columns = [str(more) for more in range(max(most, MOST_STEPS) + 1)]
    body = [
        [phase, sum(found.values()), *(found.get(each, 0) for each in columns)]
        for phase, found in steps.items()
    ]
    head = ["phase", "disconnects", *(f"{each} steps" for each in columns)]
    left = data["found"]["left"] or "nothing"
    note = f"Steps with the request's work after its client left. Left at the end: {left}."
    return f"## Clients that leave\n\n{markdown(head, body)}\n\n{note}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=200, help="disconnects in each phase")
    parser.add_argument("--output", type=Path, default=record.results(__file__))
    options = parser.parse_args()
    gguf = pull.pull(MODEL)
    found = run(Place(gguf, gguf.parent, 0), options.each, Sizes())
    data = record.facts() | {"model": MODEL, "found": found}
    record.write(options.output, "disconnects", data, table(data))
    print(table(data))
    return 1 if found["late"] or found["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
