"""An engine without a model: tokens follow from a small function of the history."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suffice.decoder.pooling import Pooling
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.protocol import Rows
from suffice.errors import InputError, OutOfMemory
from suffice.speculate import Proposer, Tree, Widths
from suffice.speculate.none import NoDrafts
from suffice.trace import Reads, Trace

EOS = 0
PIECES = [
    "<eos>",
    "<other>",
    " ",
    "ab",
    "c",
    "abc",
    "d",
    "bc",
    "x",
    "\n",
    "\u00e9",
    "END",
    "E",
    "N",
]
V = len(PIECES)
Rule = Callable[[list[int]], np.ndarray]


def scripted(*tokens: int) -> Rule:
    """After a one-token prompt, generate these tokens, then end-of-sequence."""

    def rule(history: list[int]) -> np.ndarray:
        position = len(history) - 1
        token = tokens[position] if position < len(tokens) else EOS
        return 10 * np.eye(V, dtype=np.float32)[token]

    return rule


def mixed(history: list[int]) -> np.ndarray:
    """Return logits that depend on every token of the history, and on its length."""
    seed = 17
    for token in history:
        seed = (seed * 31 + token + 1) % 1_000_003
    return 2 * np.random.default_rng(seed).standard_normal(V, np.float32)


MOST_STATES = 3  # that a cache keeps, the newest


class FakeCache:
    tight = True  # rows are taken one by one

    def __init__(self, *, stateful: bool) -> None:
        self.tokens: list[int] = []
        self.bytes = 0  # one for each row
        self.stateful, self.tail = stateful, 0.0
        self.states = {0}  # lengths to which it can be cut back if it is stateful

    @property
    def length(self) -> int:
        return len(self.tokens)

    def reachable(self, rows: int) -> int:
        lengths = {*self.states, self.length} if self.stateful else {min(rows, self.length)}
        return max(length for length in lengths if length <= rows)

    def keep_state(self) -> None:
        assert self.stateful
        self.states = {0, *sorted({*self.states, self.length})[-MOST_STATES:]}

    def drop_states(self) -> bool:
        dropped = self.states > {0}
        self.states = {0}
        return dropped

    def truncate(self, rows: int) -> None:
        assert rows <= len(self.tokens)
        assert self.reachable(rows) == rows
        del self.tokens[rows:]
        self.states = {length for length in self.states if length <= rows}


class FakeSequence:
    def __init__(self, name: str, limit: int, *, stateful: bool) -> None:
        self.name, self.limit = name, limit
        self.cache = FakeCache(stateful=stateful)
        self.reads = Reads()
        self.prompt = False  # one is being run
        self.prompt_ends = 0
        self.tentative: list[int] = []
        self.unmapped = 0  # rows of the prompt's memory


class FakeRunner:
    """Rows are taken one by one from `memory`; everything a call may not do is asserted."""

    vocabulary = V
    stored_as = "float32"
    runs_as = "float32"
    bits_per_weight = 32.0
    tile_rows = 30
    tile_unit = 8
    known_rows = 30
    shares_prompts = True
    prompts_by_technique = False
    maxima = None
    pooling = Pooling(V)  # a row's logits are its state
    maps_in_parts = False  # otherwise memory is mapped as soon as it is reserved

    def __init__(self, rule: Rule, memory: int = 10**9, *, stateful: bool = False) -> None:
        self.rule, self.memory, self.stateful = rule, memory, stateful
        self.open_sequences: list[FakeSequence] = []
        self.batches: list[int] = []
        self.prefilled: list[list[int]] = []
        self.replayed: list[list[int]] = []
        self.populated: list[int] = []  # rows of the prompts whose memory was mapped, in order
        self.interrupt_after: int | None = None
        self.proposer: Proposer = NoDrafts()
        self.most_drafts = 0
        self.limit = memory
        self.trace = Trace(1, 1)

    def shares_answers(self, technique: int = 0) -> bool:
        return True

    def guarantee(self, technique: int = 0, *, prompt_read: bool = False) -> Any:
        return "exact"

    def allow(self, config: Any) -> int:
        return 1

    @property
    def memory_bytes(self) -> tuple[int, int]:
        return self.limit - self.memory, self.limit

    def open(self, request_id: str, limit: int) -> FakeSequence:
        sequence = FakeSequence(request_id, limit, stateful=self.stateful)
        self.open_sequences.append(sequence)
        return sequence

    def _take(self, sequence: FakeSequence, rows: int) -> None:
        more = max(0, rows - sequence.cache.bytes)
        if more > self.memory:
            raise OutOfMemory(f"request {sequence.name} needs {rows} rows")
        self.memory -= more
        sequence.cache.bytes += more

    def begin(self, sequence: FakeSequence, rows: int) -> None:
        assert rows > 0, "the last token is always run"
        self._take(sequence, sequence.cache.length + rows)
        sequence.prompt = True
        sequence.prompt_ends = sequence.cache.length + rows
        sequence.unmapped = rows if self.maps_in_parts else 0

    def populate(self, sequence: FakeSequence, size: int) -> bool:
        assert sequence.prompt
        if size and sequence.unmapped:
            self.populated.append(sequence.prompt_ends)
            sequence.unmapped = max(sequence.unmapped - size, 0)
        return sequence.unmapped == 0

    def end(self, sequence: FakeSequence) -> None:
        assert sequence.prompt, "no prompt is being run"
        sequence.prompt = False

    def rewind(self, sequence: FakeSequence, rows: int) -> None:
        sequence.cache.truncate(rows)

    def bytes_of(self, rows: int) -> int:
        return rows + 1

    def prefill(self, sequence: FakeSequence, tokens: list[int]) -> np.ndarray:
        """Run a part of a prompt."""
        assert sequence in self.open_sequences and sequence.prompt
        assert 0 < len(tokens) <= self.tile_rows
        assert sequence.cache.bytes >= sequence.cache.length + len(tokens), "not reserved"
        self.prefilled.append(list(tokens))
        sequence.cache.tokens += tokens
        wanted = len(sequence.cache.tokens) >= sequence.prompt_ends
        return self.rule(sequence.cache.tokens) if wanted else np.empty(V, np.float32)

    def run(self, batch: list[Rows]) -> list[np.ndarray]:
        sequences = [rows.sequence for rows in batch]
        assert len(set(map(id, sequences))) == len(batch) > 0
        decodes = [rows for rows in batch if rows.outputs is None]
        found = iter([])
        if decodes:
            assert all(len(rows.tokens) == 1 for rows in decodes)
            logits = self.verify(
                [rows.sequence for rows in decodes],
                [rows.tokens[0] for rows in decodes],
                [rows.drafts for rows in decodes],
            )
            cuts = itertools.accumulate(rows.count for rows in decodes[:-1])
            found = iter(np.split(logits, list(cuts)))
        return [self._one(rows) if rows not in decodes else next(found) for rows in batch]

    def _one(self, rows: Rows) -> np.ndarray:
        if rows.prompt:
            last = self.prefill(rows.sequence, rows.tokens)
            ended = rows.sequence.cache.length >= rows.sequence.prompt_ends
            return last[None][: rows.count] if rows.count <= ended else self._scored(rows)
        assert rows.outputs == 0 and 0 < len(rows.tokens) <= self.known_rows
        assert rows.sequence.cache.bytes >= rows.sequence.cache.length + len(rows.tokens)
        self.replayed.append(list(rows.tokens))
        rows.sequence.tentative = list(rows.tokens)
        return np.empty((0, V), np.float32)

    def _scored(self, rows: Rows) -> np.ndarray:
        """Return the logits of the last rows of a part of a prompt that has been run."""
        text = rows.sequence.cache.tokens
        assert rows.count <= len(rows.tokens)
        ends = range(len(text) - rows.count + 1, len(text) + 1)
        return np.stack([self.rule(text[:end]) for end in ends])

    def reserve(
        self,
        sequence: FakeSequence,
        rows: int = 1,
        drafts: int = 0,
        tokens_per_step: float = 1.0,
    ) -> int:
        assert drafts >= 0
        assert sequence.cache.length + rows <= sequence.limit
        self._take(sequence, sequence.cache.length + rows)
        most = min(drafts, sequence.limit - sequence.cache.length - rows, self.memory)
        self._take(sequence, sequence.cache.length + rows + most)
        return most

    def follow(self, sequences: list[FakeSequence]) -> None: ...

    def propose(self, samples: list[Any], shapes: list[Widths]) -> list[Tree]:
        return self.proposer.propose(samples, shapes)

    def forget(self, sample: Any) -> None:
        self.proposer.forget(sample)

    def verify(
        self, sequences: list[FakeSequence], tokens: list[int], drafts: list[Tree]
    ) -> np.ndarray:
        assert len(set(map(id, sequences))) == len(sequences) == len(tokens) == len(drafts) > 0
        self.batches.append(len(sequences))
        logits = []
        for sequence, token, tree in zip(sequences, tokens, drafts, strict=True):
            assert sequence in self.open_sequences
            assert sequence.cache.bytes > sequence.cache.length + len(tree), "not reserved"
            sequence.tentative = [token, *tree.tokens]
            texts = [[*sequence.cache.tokens, token]]
            for draft, parent in zip(tree.tokens, tree.parents, strict=True):
                texts.append([*texts[parent + 1], draft])
            logits += [self.rule(text) for text in texts]
        if self.interrupt_after is not None and len(self.batches) > self.interrupt_after:
            self.interrupt_after = None
            raise KeyboardInterrupt
        return np.stack(logits)

    def commit(self, sequence: FakeSequence, path: list[int]) -> None:
        assert path[0] == 0 and path == sorted(set(path))
        sequence.cache.tokens += [sequence.tentative[row] for row in path]
        sequence.tentative = []

    def fork(
        self, sequence: FakeSequence, rows: int | None = None, spare: int | None = None
    ) -> FakeSequence:
        assert sequence in self.open_sequences and not sequence.tentative
        kept = sequence.cache.length if rows is None else rows
        assert kept == sequence.cache.reachable(kept)
        copy = FakeSequence(sequence.name, sequence.limit, stateful=self.stateful)
        self._take(copy, kept + (spare or 0))
        copy.cache.tokens = sequence.cache.tokens[:kept]
        copy.cache.states = {length for length in sequence.cache.states if length <= kept}
        self.open_sequences.append(copy)
        return copy

    def close(self, sequence: FakeSequence) -> None:
        self.open_sequences.remove(sequence)
        self.memory += sequence.cache.bytes
        sequence.cache.bytes = 0


class FakeDecoder:
    def __init__(self, skip_special: bool) -> None:
        self.skip = 2 if skip_special else 0

    def push(self, token: int) -> str:
        return PIECES[token] if token >= self.skip else ""

    def flush(self) -> str:
        return ""


class FakeTokenizer:
    eos_ids = frozenset({EOS})
    chat_template = tool_template = None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokens = []
        while text:
            piece = max((p for p in PIECES[2:] if text.startswith(p)), key=len, default=None)
            if piece is None:
                raise InputError(f"cannot encode {text!r}")
            tokens.append(PIECES.index(piece))
            text = text[len(piece) :]
        return tokens

    def decode(self, tokens: list[int], *, skip_special: bool = False) -> str:
        return "".join(map(FakeDecoder(skip_special).push, tokens))

    def chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        return self.encode(self.chat_text(messages, add_generation_prompt=add_generation_prompt))

    def chat_text(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_last: bool = False,
        facts: Any = None,
    ) -> str:
        text = "".join(f"{message['content']}\n" for message in messages)
        return text + ("E" if add_generation_prompt else "")

    def whole(self) -> dict[str, int]:
        return {}

    def stream(self, *, skip_special: bool, marked: Sequence[int] = ()) -> FakeDecoder:
        return FakeDecoder(skip_special)


def fake_llm(
    rule: Rule = mixed, memory: int = 10**9, *, stateful: bool = False, **options: Any
) -> LLM:
    """Return an LLM on a fake runner with a context of 64 tokens."""
    config = Config.create("fake", growth="iterative", **{"threads": 1, **options})
    runner = FakeRunner(rule, memory, stateful=stateful)
    return LLM.from_parts(config.resolved("float32", 64), runner, FakeTokenizer())


def runner_of(llm: LLM) -> FakeRunner:
    assert isinstance(llm.runner, FakeRunner)
    return llm.runner
