"""What an engine takes and gives: works, deltas and counts. They hold plain values alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from suffice.attention.rule import Guarantee
from suffice.engine.reading import Reading
from suffice.engine.thinking import Thinking
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from suffice.sampling import Constraint


class Grammar(Protocol):
    """A compiled grammar."""

    def start(self) -> Constraint:
        """Return the constraint of a new text."""


@dataclass(frozen=True)
class RowsFile:
    """A file with the rows of a prompt: `saves` says whether they are written there, or read."""

    path: str
    saves: bool


@dataclass(frozen=True)
class Work:
    """One request: tokens, and how to go on from them.

    Attributes:
        id: Its name, which no other request under way has.
        prompt: Token ids; templates are the caller's work.
        priority: A smaller number comes first, and is parked last when memory runs out.
        key: Requests of one key share their time with those of other keys.
        deadline: Seconds from submission after which it ends with error code "deadline".
        attention: The text of a technique that the engine allows; None is its own.
        adapter: The name of one of the engine's adapters; None is the model itself.
        reuse: Whether it may use, and leave, keys and values that requests share.
        keeps: Whether keys and values of its prompt shall stay for those who go on from it: others
            that share less of it get a copy.
        group: Keys and values are shared with requests of the same group only.
        known: Tokens that each sample has given already, elsewhere; it goes on after them. The
            prompt's log probabilities were given with the first of them, and are not again.
        grammar: What the samples' texts must follow.
        thinking: What precedes that, or is limited.
        progress: Whether deltas also say how far the prompt is.
        reading: What is read off the prompt; then nothing is generated.
        file: Where rows of the whole prompt go, or come from; then it is given no tokens.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    key: str = ""
    deadline: float | None = None
    attention: str | None = None
    adapter: str | None = None
    reuse: bool = True
    keeps: bool = False
    group: str = ""
    known: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    progress: bool = False
    reading: Reading | None = None
    file: RowsFile | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log probability, its rank (1 = most likely) and its text."""

    token: int
    logprob: float
    rank: int
    text: str


Entries = tuple[tuple[TokenLogprob, ...], ...]  # of each position


@dataclass(frozen=True)
class Final:
    """What a request cost, and why it failed if it did.

    Rows and bytes are those of decode steps, over all samples: a row is one token's key or value in
    one layer and head. Of states, `state_bytes_moved` are read and written, once each in a step.
    `missing` is the largest share of a softmax that its steps left unread: 0 with the guarantee
    "exact", bounded by the technique with "bound", and at a confidence for each softmax with
    "probable", estimated with "estimate", None with "none"; `missing_mean` is the mean over the
    `softmaxes` that are bounded or estimated. `shift` and `shift_mean` bound likewise how far
    outputs are moved, over the length of the longest value; None if nothing does. Tiles of the
    prompt read `prompt_rows_read` of the `prompt_rows_held` keys that they saw, both 0 if prompts
    are not attended to by tiles. `audited` tokens were also attended to everything;
    `audited_missing` is the largest share that was missing (NaN where it is not defined),
    `audited_error` the largest error of an output over the output.

    `draft_steps` are those that had drafts to check, `accepted_at` the accepted drafts by their
    position in the step.

    `error_code` is "too_large" (more memory than there is), "deadline", "invalid" (no token could
    be chosen) or "internal".
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cached_from_disk: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafts: int = 0
    draft_steps: int = 0
    accepted_at: tuple[int, ...] = ()
    accepted: int = 0
    key_rows_read: int = 0
    rows_held: int = 0
    value_rows_read: int = 0
    bytes_read: int = 0
    bytes_held: int = 0
    state_bytes_moved: int = 0
    attention: str = "exact"
    guarantee: Guarantee = "exact"
    missing: float | None = None
    missing_mean: float | None = None
    shift: float | None = None
    shift_mean: float | None = None
    softmaxes: int = 0
    prompt_rows_read: int = 0
    prompt_rows_held: int = 0
    audited: int = 0
    audited_missing: float = 0.0
    audited_error: float = 0.0
    preemptions: int = 0
    error: str | None = None
    error_code: str | None = None


@dataclass(frozen=True)
class Progress:
    """How far a prompt is: `done` of its `total` tokens, the `cached` ones included.

    `seconds` are those since it was begun, without those that it waited.
    """

    done: int
    total: int
    cached: int
    seconds: float


@dataclass(frozen=True)
class Delta:
    """What a step gave one sample.

    `logprobs` has, for each new token, the chosen one first and then the most likely ones. Likewise
    `prompt_logprobs` for each token of the prompt but the first; it comes with the first delta.
    `finish_reason` is "stop", "length", "abort" or, while it goes on, None. `final` comes with the
    request's last delta, and with it `vector`, what was read off the prompt: little-endian float32.
    A delta with `progress` has nothing else, unless several were merged.
    """

    id: str
    sample: int
    text: str
    tokens: tuple[int, ...]
    logprobs: Entries | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    final: Final | None = None
    prompt_logprobs: Entries | None = None
    progress: Progress | None = None
    vector: bytes | None = None

    @property
    def is_progress(self) -> bool:
        """Whether it says how far the prompt is, and nothing else."""
        return self.progress is not None and not (
            self.tokens or self.text or self.finish_reason is not None
        )


@dataclass(frozen=True)
class EngineStats:
    """The engine's state, and its counts since it began.

    Attributes:
        kv_bytes_limit: 0 if there is none.
        prefix_queries: Prompt tokens that were looked up in the prefix store.
        prefix_hits: Those of them that were found there.
        preemptions: Requests that were parked, for memory or for more urgent ones.
        deferred: Those of the waiting requests that wait for another's prompt, which begins alike.
        prompt_rows_copied: Tokens whose keys and values were copied from another cache, not run.
        growth_bytes_copied: Bytes of keys and values that were copied when caches grew.
        drafts: Drafted tokens that were checked; `accepted` are those of them that were right.
        tokens_per_second: Generated tokens a second, of the last five seconds.
        last_step_at: When the last step ended, on the clock of `time.monotonic`.
        token_seconds: What a token of a prompt adds to a step, measured; 0 if nothing has been.
        disk_prefix_queries: Prompt tokens that were looked up on disk; `disk_prefix_hits` are those
            of them whose rows were read there.
        disk_blocks_damaged: Files that did not hold what their names say, which were removed.
        disk_blocks_failed: Blocks that could not be read or written.
        disk_blocks_removed: For their age, or for room.
        disk_bytes: Bytes in the folder, as far as this engine knows.
        step_seconds: A step without prompts takes about this and `row_seconds` for each sample.
    """

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_bytes_used: int = 0
    kv_bytes_limit: int = 0
    prefix_bytes: int = 0
    prefix_entries: int = 0
    prefix_hits: int = 0
    prefix_queries: int = 0
    preemptions: int = 0
    steps: int = 0
    last_step_at: float = 0.0
    prompt_tokens: int = 0
    prompt_rows_copied: int = 0
    growth_bytes_copied: int = 0
    generated_tokens: int = 0
    tokens_per_second: float = 0.0
    key_rows_read: int = 0
    value_rows_read: int = 0
    rows_held: int = 0
    kv_bytes_read: int = 0
    kv_bytes_held: int = 0
    state_bytes_moved: int = 0
    weight_bytes_read: int = 0
    experts_read: int = 0
    experts_held: int = 0
    expert_bytes_read: int = 0
    expert_bytes_held: int = 0
    drafts: int = 0
    accepted: int = 0
    token_seconds: float = 0.0
    step_seconds: float = 0.0
    row_seconds: float = 0.0
    disk_prefix_queries: int = 0
    disk_prefix_hits: int = 0
    disk_blocks_read: int = 0
    disk_bytes_read: int = 0
    disk_blocks_written: int = 0
    disk_bytes_written: int = 0
    disk_blocks_damaged: int = 0
    disk_blocks_failed: int = 0
    disk_blocks_removed: int = 0
    disk_bytes: int = 0

    @property
    def tokens_run(self) -> int:
        """The tokens of prompts that were run, and those that were generated."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True)
class Look:
    """A close look at an engine between two steps, for those who watch it.

    Attributes:
        key_rows: Rows that decode steps have read so far, by layer and key/value head, [L][G];
            `value_rows` and `rows_held` likewise.
        guarantee: What is known of what the running requests left out, the weakest; None if none
            runs.
        missing: The largest share of a softmax that their steps left unread, by that guarantee.
        audit: The figures of audited steps so far, see `trace.Audit.plain`; None without any.
    """

    stats: EngineStats
    key_rows: list[list[int]]
    value_rows: list[list[int]]
    rows_held: list[list[int]]
    guarantee: Guarantee | None = None
    missing: float = 0.0
    audit: dict[str, Any] | None = None
