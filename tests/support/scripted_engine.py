"""An engine without a model for tests of the server: tokens follow from prompt, seed and position.

It runs in the engine's process like the real one. Its options: `step_seconds` of a step,
`max_waiting` requests, `context`, `says` (the text of every answer), `ends` (whether an answer
ends where that text does), `hold` (a file: while it
exists a sample gets no more tokens than it says; if it is empty, than `hold_after`, none unless
given), `hang` (a file: the first engine with work that finds it removes it, and its step never
ends), `fail` (a word: the engine refuses to start with it), `dies` (a file: the engine's process
ends while it exists), `packed` (a file: gets a line from each engine that packs the weights),
`late` (a file: an engine that starts waits while it exists), `prints` (a file with the
fingerprint), `log` (a file that gets the prompt of each request, a line each), `reads` (tokens of
a prompt that a step reads, before all else; without it prompts take no step), `pooling` (fields of
how it embeds).
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.decoder.shelf import Shelf
from suffice.engine.work import (
    Delta,
    EngineStats,
    Entries,
    Final,
    Look,
    Progress,
    TokenLogprob,
    Work,
)
from suffice.errors import Busy, Closed, InputError
from suffice.serve.processes import wire
from suffice.serve.processes.hosted import Opened

VOCABULARY = 400
LAYERS, KV_HEADS, HELD = 6, 3, 60  # of the looks: rows that a token's step holds in a head
SIZE = 4  # of an embedding
LENGTH = 40  # tokens of an answer without a limit
PIECE = 10  # characters of a token, if the answer's text is given
FATAL = 666  # a seed that ends the engine's thread
OUT_OF_MEMORY = 299  # a prompt that ends with this token finds no memory


def token_of(prompt: tuple[int, ...], seed: int, sample: int, position: int) -> int:
    text = f"{prompt} {seed} {sample} {position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") % VOCABULARY


def text_of(token: int) -> str:
    return f"{token:x}é "


class Running:
    def __init__(
        self,
        work: Work,
        on_delta: Callable[[Delta], None],
        context: int,
        says: str,
        reads: int,
        ends: bool,
    ) -> None:
        self.work, self.on_delta, self.says = work, on_delta, says
        self.reads, self.done = reads, 0
        n = work.params.n
        self.tokens = [list(known) for known in work.known] or [[] for _ in range(n)]
        most = LENGTH if work.params.max_tokens is None else work.params.max_tokens
        whole = -(-len(says) // PIECE) if ends else context
        self.limit = min(most, context - len(work.prompt), whole)
        self.end = "stop" if self.limit == whole else "length"
        self.scores = None if any(work.known) else scores(work)
        self.cancelled = False

    def final(self, error: str | None = None, code: str | None = None) -> Final:
        count = sum(map(len, self.tokens))
        return Final(
            prompt_tokens=len(self.work.prompt),
            cached_tokens=len(self.work.prompt) // 2 if self.work.reuse else 0,
            generated_tokens=count,
            key_rows_read=10 * count,
            rows_held=20 * count,
            value_rows_read=5 * count,
            bytes_read=100 * count,
            bytes_held=200 * count,
            attention=self.work.attention or "exact",
            guarantee="estimate",
            missing=0.004,
            error=error,
            error_code=code,
        )

    def text(self, token: int, position: int) -> str:
        first = position * PIECE
        return self.says[first : first + PIECE] if self.says else text_of(token)

    def read(self) -> None:
        """Read the next tokens of the prompt, and tell of it who asked."""
        total = len(self.work.prompt)
        cached = self.final().cached_tokens
        self.done = min(max(self.done, cached) + self.reads, total)
        if self.work.progress:
            progress = Progress(self.done, total, cached, 0.001 * self.done)
            self.on_delta(Delta(self.work.id, 0, "", (), progress=progress))

    def goes_on(self, tokens: int) -> bool:
        """Whether a held engine steps it, up to a number of tokens."""
        return self.cancelled or len(self.tokens[0]) < tokens

    def step(self) -> bool:
        """Give each sample its next token; return whether the request has ended."""
        work = self.work
        if self.cancelled:
            self.on_delta(Delta(work.id, 0, "", (), None, "abort", None, self.final()))
            return True
        if self.reads and not any(work.known) and self.done < len(work.prompt):
            self.read()
            return False
        if work.params.seed == FATAL:
            raise RuntimeError("a fault of the engine")
        if work.prompt[-1] == OUT_OF_MEMORY:
            final = self.final("no memory is left", "no_memory")
            self.on_delta(Delta(work.id, 0, "", (), None, "abort", None, final))
            return True
        if work.reading is not None:
            read = vector(work).tobytes()
            end = Delta(work.id, 0, "", (), None, "length", None, self.final(), vector=read)
            self.on_delta(end)
            return True
        if not self.limit:
            end = Delta(work.id, 0, "", (), None, "length", None, self.final(), self.scores)
            self.on_delta(end)
            return True
        live = [at for at, tokens in enumerate(self.tokens) if len(tokens) < self.limit]
        for at in live:
            token = token_of(work.prompt, work.params.seed or 0, at, len(self.tokens[at]))
            self.tokens[at].append(token)
            ended = len(self.tokens[at]) >= self.limit
            top = work.params.logprobs
            entry = tuple(
                TokenLogprob(token + rank, -1.0 - rank, rank + 1, text_of(token + rank))
                for rank in range((top or 0) + 1)
            )
            self.on_delta(
                Delta(
                    work.id,
                    at,
                    self.text(token, len(self.tokens[at]) - 1),
                    (token,),
                    None if top is None else (entry,),
                    self.end if ended else None,
                    None,
                    self.final() if ended and at == live[-1] else None,
                    self.scores,
                )
            )
            self.scores = None
        return not any(len(tokens) < self.limit for tokens in self.tokens)


def vector(work: Work) -> NDArray[np.float32]:
    """Return what is read off a prompt: an embedding of `SIZE`, or logs that follow from tokens."""
    assert work.reading is not None
    if work.reading.tokens:
        logs = [-0.5 * ((sum(work.prompt) + token) % 5) for token in work.reading.tokens]
        return np.array(logs, "<f4")
    seeds = np.random.default_rng(sum(work.prompt) + len(work.prompt)).standard_normal(SIZE)
    kept = seeds[: work.reading.dimensions]
    return (kept / np.linalg.norm(kept)).astype("<f4")


def scores(work: Work) -> Entries | None:
    """Return what a prompt's tokens have as log probabilities: -1, and -2 from then on."""
    top = work.params.prompt_logprobs
    if top is None:
        return None
    return tuple(
        tuple(
            TokenLogprob(token + rank, -1.0 - (at > 0) - rank, rank + 1, text_of(token + rank))
            for rank in range(top + 1)
        )
        for at, token in enumerate(work.prompt[1:])
    )


class ScriptedEngine:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.step_seconds = float(options.get("step_seconds", 0.001))
        self.max_waiting = int(options.get("max_waiting", 1000))
        self.vocabulary = int(options.get("vocabulary", VOCABULARY))
        self.context = int(options.get("context", 512))
        self.says = str(options.get("says", ""))
        self.reads, self.ends = int(options.get("reads", 0)), bool(options.get("ends"))
        self.hold = Path(options["hold"]) if options.get("hold") else None
        self.hold_after = int(options.get("hold_after", 0))
        self.hang = Path(options["hang"]) if options.get("hang") else None
        self.log = Path(options["log"]) if options.get("log") else None
        self.requests: dict[str, Running] = {}
        self.lock = threading.Lock()
        self.asked = threading.Event()
        self.closed = False
        self.steps = self.given = 0
        self.last_step_at = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        if self.closed:
            raise Closed("the engine is closed")
        if bad := [token for token in work.prompt if not 0 <= token < self.vocabulary]:
            raise InputError(f"prompt_token_ids: {bad[0]} is not a token id")
        with self.lock:
            if len(self.requests) >= self.max_waiting:
                raise Busy(f"{len(self.requests)} requests wait already", 2.5)
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(f"{'-'.join(map(str, work.prompt))}\n")
            own = self.context, self.says, self.reads, self.ends
            self.requests[work.id] = Running(work, on_delta, *own)
            self.asked.set()

    def cancel(self, id: str) -> bool:
        with self.lock:
            found = self.requests.get(id)
            if found is not None:
                found.cancelled = True
            return found is not None

    def stats(self) -> EngineStats:
        keys, values, held = (sum(map(sum, grid)) for grid in self._grids())
        return EngineStats(
            running=len(self.requests),
            generated_tokens=self.given,
            key_rows_read=keys,
            value_rows_read=values,
            rows_held=held,
            kv_bytes_read=300 * self.given,
            kv_bytes_held=800 * self.given,
            drafts=4 * self.given,
            accepted=3 * self.given,
            kv_bytes_used=1000 * len(self.requests),
            kv_bytes_limit=10_000,
            steps=self.steps,
            last_step_at=self.last_step_at,
        )

    def step_tokens(self) -> list[int]:
        return []

    def look(self) -> Look:
        return Look(self.stats(), *self._grids(), "estimate", 0.004)

    def _grids(self) -> list[list[list[int]]]:
        """Key rows, value rows and rows held, [L][G]: the later a head, the less it reads."""
        held = HELD * self.given
        grid = [[(layer, head) for head in range(KV_HEADS)] for layer in range(LAYERS)]
        return [
            [[held // (1 + head) for _, head in row] for row in grid],
            [[held // (2 + head + layer) for layer, head in row] for row in grid],
            [[held] * KV_HEADS] * LAYERS,
        ]

    def drain(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def _held(self) -> int | None:
        """Return the most tokens of a sample for now; None: all."""
        try:
            return None if self.hold is None else int(self.hold.read_text() or self.hold_after)
        except FileNotFoundError:
            return None

    def _run(self) -> None:
        while not self.closed:
            self.asked.clear()
            if not self.requests:
                self.asked.wait(0.05)
            time.sleep(self.step_seconds)
            if self.hang is not None and self.requests and taken(self.hang):
                threading.Event().wait()
            held = self._held()
            if held == 0:
                continue
            with self.lock:
                requests = list(self.requests.values())
            if held is not None:
                requests = [each for each in requests if each.goes_on(held)]
            for each in requests:
                before = sum(map(len, each.tokens))
                ended = each.step()
                self.given += sum(map(len, each.tokens)) - before
                if ended:
                    with self.lock:
                        del self.requests[each.work.id]
            self.steps += 1
            self.last_step_at = time.monotonic()


def taken(file: Path) -> bool:
    """Remove a file; return whether it was there."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def compiled(text: str) -> Any:
    raise InputError("the scripted engine follows no grammar")


def opened(
    options: Mapping[str, Any], limits: Mapping[str, Any], memory: int | None = None
) -> Opened:
    """Make the engine, as `Settings.engine` names it."""
    shelf = Shelf(memory)
    packer = int(shelf.kept("packer", lambda allocate: os.getpid()))
    if packer == os.getpid() and options.get("packed"):
        with Path(options["packed"]).open("a", encoding="ascii") as log:
            log.write(f"{packer}\n")
    if options.get("dies") and Path(options["dies"]).exists():
        os._exit(70)
    while options.get("late") and Path(options["late"]).exists():
        time.sleep(0.05)  # a loading engine that computes is not said to hang
    if options.get("fail"):
        raise InputError(f"the model '{options['fail']}' cannot be used")
    shelf.close()
    facts = wire.Facts(
        max_model_len=int(options.get("context", 512)),
        vocabulary=VOCABULARY,
        max_num_seqs=16,
        fingerprint=Path(options["prints"]).read_text() if "prints" in options else "fp_scripted",
        weight_bytes=123,
        attentions=("exact", *limits.get("attentions", ())),
        pooling={"size": SIZE, **options.get("pooling", {})},
    )
    return Opened(ScriptedEngine(options), facts, compiled)
