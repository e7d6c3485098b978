# Written by tools/stubs.py from the built extension, whose csrc/bind checks every argument.
import enum
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

_Float32s: TypeAlias = NDArray[numpy.float32]
_Float64s: TypeAlias = NDArray[numpy.float64]
_Int32s: TypeAlias = NDArray[numpy.int32]
_Int64s: TypeAlias = NDArray[numpy.int64]
_Uint32s: TypeAlias = NDArray[numpy.uint32]
_Uint8s: TypeAlias = NDArray[numpy.uint8]

PANEL: int

ROW_LEVELS: list[int]

ROW_LEVEL_UNIT: float

TRIED_FACTORS: list[float]

class OutOfMemory(MemoryError):
    pass

def isas() -> list[tuple[str, bool, bool]]: ...
def isa() -> str: ...
def use_isa(name: str) -> bool: ...
def on_amd() -> bool: ...
def choose_as_on_amd(on: bool) -> None: ...
def cores() -> int: ...
def threads() -> int: ...
def set_threads(threads: int) -> None: ...
def fail_in_thread(thread: int) -> None:
    """
    Raises MemoryError in a thread of the team, to test how it is passed on.
    """

def read_bandwidth(bytes: int, threads: int, repeats: int) -> float: ...

class Products(enum.Enum):
    """What is multiplied."""

    float32 = 0

    bfloat16 = 1

    int16 = 2

    int8 = 3

def product_rate(of: Products, threads: int, repeats: int) -> float: ...
def copy_bandwidth(bytes: int, threads: int, repeats: int) -> float: ...
def block_types() -> list[tuple[str, int, int, int, bool]]:
    """Name, number in GGUF files, values and bytes of each type of blocks."""

def read_rows(
    file: int,
    offset: int,
    block_type: str,
    first: int,
    out: _Float32s,
    paired: int = 0,
    rotated: int = 0,
) -> bool: ...
def code_layouts() -> list[tuple[str, int, int, str, str, str, list[int]]]:
    """
    Name, bits, group, scales, minima, grid, and levels plus 128, of each type of codes.
    """

def read_panels(
    file: int,
    offset: int,
    block_type: str,
    rows: int,
    columns: int,
    out: _Uint8s,
    paired: int = 0,
    rotated: int = 0,
) -> bool: ...
def pack_codes(
    codes: _Uint8s,
    bits: int,
    group: int,
    scales: str,
    minima: str,
    scale_bytes: _Uint8s,
    outer_bytes: _Uint8s | None,
    minimum_bytes: _Uint8s | None,
    out: _Uint8s,
) -> bool: ...
def read_bytes(file: int, offset: int, out: _Uint8s) -> None: ...
def all_finite(block_type: str, values: _Uint8s) -> bool: ...
def unpack_words(words: _Int32s, bits: int, places: Sequence[int], out: _Uint8s) -> None: ...
def read_strings(data: NDArray[numpy.uint8], at: int, count: int) -> tuple[list[str], int]: ...

class Linear:
    def __init__(
        self,
        data: _Uint8s,
        rows: int,
        columns: int,
        dtype: str,
        scale: _Float32s | None = None,
        bias: _Float32s | None = None,
        levels: _Uint8s | None = None,
        group: int = 0,
        scales: str = "float16",
        minima: str = "none",
        grid: str = "none",
        entries: _Uint32s | None = None,
        order: _Int32s | None = None,
        rotation: int = 0,
        max_code: int = 0,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def __call__(self, x: _Float32s, y: _Float32s) -> None: ...
    def unpack(self, out: _Float32s) -> None: ...
    def unpack_row(self, row: int, out: _Float32s) -> None: ...
    def set_inputs(
        self, levels: _Float32s, outliers: int, group: int, low: float, high: float
    ) -> None: ...
    def count_pairs(self, x: _Uint8s, x_levels: _Float32s, y: _Float32s) -> None: ...

def outliers(values: _Float32s, found: _Int32s) -> None: ...

class Arena:
    def __init__(self, limit_bytes: int = 0) -> None: ...
    @property
    def used(self) -> int: ...
    @property
    def limit(self) -> int: ...

class KeyRoundings:
    def __init__(
        self, scales: _Float32s, means: _Float32s, passed: _Float32s, weights: _Float32s
    ) -> None: ...

class KVCache:
    def __init__(
        self,
        heads: Sequence[int],
        sizes: Sequence[int],
        shares: Sequence[int],
        key_type: str,
        value_type: str,
        arena: Arena,
        sketch: bool = False,
        boxes: bool = False,
        masses: bool = False,
        bases: bool = False,
        rounding: KeyRoundings | None = None,
        states: Sequence[StateShape] = [],
        joint: int = 0,
    ) -> None: ...
    def removed(self, layer: int) -> int: ...
    def evict(self, layer: int, kept: _Int32s, length: int) -> None: ...
    def set_order(self, layer: int, order: _Int32s) -> None: ...
    def set_eligible(self, layer: int, sinks: int, recent: int, blocks: int) -> None: ...
    def load_masses(self, layer: int, masses: _Float32s) -> None: ...
    def store_masses(self, layer: int, masses: _Float32s) -> None: ...
    def sum_weights(
        self, layer: int, length: int, q: _Float32s, scale: float, sums: _Float32s
    ) -> None: ...
    def dead_rows(self, length: int) -> int: ...
    def compact(self, length: int) -> None: ...
    def keep_heavy(self, length: int) -> None: ...
    def attend(
        self,
        layer: int,
        length: int,
        q: _Float32s,
        visible: _Int32s,
        scale: float,
        window: int,
        blocks: _Int32s | None,
        out: _Float32s,
        rule: AttentionRule | None = None,
        audit: _Float32s | None = None,
        unread: float = 0.0,
    ) -> list[Reads]: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def state_length(self) -> int: ...
    @property
    def kept_states(self) -> list[int]: ...
    def commit_states(self, path: Sequence[int]) -> None: ...
    def keep_states(self, most: int) -> None: ...
    def drop_states(self) -> bool: ...
    def reachable(self, rows: int) -> int: ...
    def rewind_states(self, rows: int) -> None: ...
    def bytes_of_rows(self, count: int) -> int: ...
    def export_rows(self, first: int, count: int, to: _Uint8s) -> int: ...
    def read_rows(self, first: int, count: int, file: int, offset: int) -> int | None: ...
    def clear_rows(self, first: int, count: int) -> None: ...
    def export_state(self, length: int, to: _Float32s) -> None: ...
    def resume_state(self, length: int, state: _Float32s) -> None: ...
    @property
    def layers(self) -> int: ...
    def heads(self, arg: int, /) -> int: ...
    def size(self, arg: int, /) -> int: ...
    @property
    def joint(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def held_bytes(self, length: int) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def key_type(self) -> str: ...
    @property
    def value_type(self) -> str: ...
    def resize(self, capacity: int, keep: int) -> None: ...
    def release(self) -> None: ...
    def populate(self, bytes: int) -> bool: ...
    def move_row(self, source: int, target: int) -> None: ...
    def settle(self, draft: int) -> None: ...
    def forget_rows(self, length: int) -> None: ...
    def copy(self, keep: int, capacity: int) -> KVCache: ...
    def forget_answers(self) -> None: ...
    def store(self, layer: int, first: int, k: _Float32s, v: _Float32s | None) -> None: ...
    def load(
        self,
        layer: int,
        first: int,
        keys: _Float32s | None,
        values: _Float32s | None,
        base: bool = False,
    ) -> None: ...

def attend_rows(
    caches: Sequence[KVCache],
    layer: int,
    lengths: _Int32s,
    counts: _Int32s,
    q: _Float32s,
    visible: _Int32s,
    scale: float,
    window: int,
    out: _Float32s,
    rules: Sequence[AttentionRule],
    reads: _Int64s,
    audit: _Float32s | None = None,
) -> Counts: ...

class StateShape:
    def __init__(
        self,
        heads: int,
        key_heads: int,
        key_size: int,
        value_size: int,
        by_entry: bool,
        channels: int,
        taps: int,
        tiled: bool = False,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...

def checksum(data: _Uint8s, before: int = 0) -> int: ...
def store_rows(
    caches: Sequence[KVCache],
    layer: int,
    lengths: _Int32s,
    counts: _Int32s,
    k: _Float32s,
    v: _Float32s,
) -> None: ...

class Counts:
    @property
    def kv_bytes(self) -> int: ...
    @property
    def sketch_bytes(self) -> int: ...
    @property
    def missing(self) -> float: ...
    @property
    def shift(self) -> float: ...
    @property
    def bounds(self) -> tuple[int, float, float]: ...
    @property
    def dense_bytes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def experts_read(self) -> int: ...
    @property
    def experts_held(self) -> int: ...
    @property
    def expert_bytes_read(self) -> int: ...
    @property
    def expert_bytes_held(self) -> int: ...
    @property
    def visits_left_out(self) -> int: ...
    @property
    def share_left_out(self) -> float: ...
    @property
    def tile_rows_read(self) -> int: ...
    @property
    def tile_rows_held(self) -> int: ...

class Model:
    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        vocabulary: int,
        embedding_width: int,
        layer_norm: bool,
        norm_eps: float,
        attention_scale: float,
        embedding_scale: float,
        logit_scale: float,
        score_cap: float,
        logit_cap: float,
        position_rows: int,
        adapters: int,
        joint: int = 0,
    ) -> None: ...
    def begin_with_hidden(
        self,
        hidden: int,
        embedded: int,
        normed_stream: bool = False,
        plain_pairs: bool = False,
        stores: bool = False,
    ) -> None: ...
    def read_caches(
        self, heads: Sequence[int], sizes: Sequence[int], shares: Sequence[int]
    ) -> None: ...
    def add_layer(self, scale: float = 1.0) -> None: ...
    def add_attention(
        self,
        parts: dict[str, object],
        kv_heads: int,
        head_size: int,
        shares: int,
        window: int,
        rope: int,
        whole_norms: bool,
        late_norms: bool = False,
        grows: bool = True,
        paired: bool = False,
        mutual: bool = False,
    ) -> None: ...
    def set_layer_embeddings(
        self, size: int, table_scale: float, project_scale: float, scale: float
    ) -> None: ...
    def add_layer_embedding(
        self, parts: dict[str, object], place: int, activation: int
    ) -> None: ...
    def add_latent(
        self,
        parts: dict[str, object],
        plain: int,
        rank: int,
        value: int,
        rope: int,
        adjacent: bool,
        norm_eps: float,
    ) -> None: ...
    def add_mlp(
        self, parts: dict[str, object], width: int, activation: int, gate_scale: float = 1.0
    ) -> None: ...
    def add_experts(
        self,
        parts: dict[str, object],
        experts: int,
        inner: int,
        shared: int,
        activation: int,
        steps: Sequence[int],
        chosen: int,
        scale: float,
        margin: float = 0.0,
        before: bool = False,
        groups: int = 1,
        kept_groups: int = 1,
    ) -> None: ...
    def add_rope(self, cos: object, sin: object, positions: int, pairs: int) -> None: ...
    def set_query_scales(self, scales: object, positions: int) -> None: ...
    def finish(self, parts: dict[str, object]) -> None: ...
    def add_convolution(self, parts: dict[str, object], channels: int, taps: int) -> None: ...
    def add_recurrence(
        self,
        parts: dict[str, object],
        shape: StateShape,
        places: tuple[int, int, int],
        activation: int,
        norm: tuple[int, bool, bool, float],
        gate_activation: int,
        most_strength: float,
        least_step: float = 0.0,
        gate_scale: float = 1.0,
        decay_scale: float = 1.0,
    ) -> None: ...
    def step(
        self,
        caches: Sequence[KVCache],
        lengths: _Int32s,
        counts: _Int32s,
        kinds: _Int32s,
        techniques: _Int32s,
        adapters: _Int32s,
        tokens: _Int32s,
        positions: _Int32s,
        visible: _Int32s,
        outputs: _Int32s,
        logits: _Float32s,
        reads: _Int64s,
        queries: _Float32s | None = None,
        audit: _Float32s | None = None,
        maxima: _Float32s | None = None,
        outside: tuple[object, _Float32s, _Int32s, _Float32s, _Int64s] | None = None,
        states: tuple[_Int32s, _Float32s] | None = None,
        streams: tuple[_Int32s, _Float32s] | None = None,
        hidden: _Float32s | None = None,
    ) -> tuple[
        Counts,
        list[tuple[int, int, int, int, int, float, float, int, int, tuple[int, float, float]]],
    ]: ...
    def leave_out(self, recent: int, sinks: int, skipped: Sequence[int]) -> None: ...
    def leave_out_experts(self, share: float) -> None: ...
    def leave_out_in_prompts(self, share: float) -> None: ...
    def set_rules(self, rules: Sequence[Sequence[AttentionRule]]) -> None: ...
    def set_taps(self, layers: Sequence[int]) -> None: ...
    def time_parts(self, timed: bool) -> None:
        """Whether the parts of later steps are timed."""

    def take_part_seconds(self) -> dict[str, float]:
        """
        Seconds of the timed steps since the last call by part, summed over threads.
        """

def pack(
    dense: _Uint8s, type: str, rows: int, columns: int, packed: _Uint8s, packed_type: str
) -> None: ...
def round_int8(
    dense: _Uint8s, type: str, rows: int, columns: int, shares: _Float32s, packed: _Uint8s
) -> bool: ...
def round_groups(
    values: _Float32s,
    group: int,
    levels: _Float32s,
    shares: _Float32s,
    importance: _Float32s | None,
    codes: _Uint8s,
    scales: _Uint8s,
    minima: _Uint8s | None,
    outer: _Uint8s,
) -> float: ...

class Reads:
    @property
    def key_rows(self) -> int: ...
    @property
    def value_rows(self) -> int: ...
    @property
    def per_head_rows(self) -> int: ...
    @property
    def dense_rows(self) -> int: ...
    @property
    def sketch_bytes(self) -> int: ...
    @property
    def missing(self) -> float: ...
    @property
    def shift(self) -> float: ...

class AttentionRule:
    def __init__(
        self, technique: str, parameters: Mapping[str, float], value_share: float
    ) -> None: ...
    @property
    def exact(self) -> bool: ...
    def with_softmax_tables(
        self, borders: Sequence[Sequence[float]], weights: Sequence[Sequence[float]]
    ) -> AttentionRule: ...

def softmax_seconds(
    scores: _Float32s, rule: AttentionRule | None, packed: bool, repeats: int
) -> float: ...
def soften_packed(scores: _Float32s, rule: AttentionRule, sums: _Float32s) -> None: ...

class SamplingRules:
    def __init__(
        self,
        *,
        greedy: bool,
        temperature: float,
        top_k: int,
        top_p: float,
        log_min_p: float,
        repetition: float,
        frequency: float,
        presence: float,
        min_tokens: int,
        stop_ids: Sequence[int],
        bad_words: Sequence[Sequence[int]],
        allowed: Sequence[int],
        bias: Sequence[tuple[int, float]],
    ) -> None: ...

class SampleState:
    def __init__(self, rules: SamplingRules, prompt: Sequence[int]) -> None: ...
    def append(self, tokens: Sequence[int]) -> None: ...
    def ahead(self, tokens: Sequence[int]) -> SampleState: ...

def sample_rows(
    logits: _Float32s,
    states: Sequence[SampleState],
    masks: _Uint32s | None,
    numbers: _Float64s,
    tokens: _Int32s,
    largest: _Float32s,
    maxima: _Float32s | None = None,
) -> None: ...

LOGIT_BLOCK: int

def probability_rows(
    logits: _Float32s,
    states: Sequence[SampleState],
    masks: _Uint32s | None,
    probs: _Float32s,
    largest: _Float32s,
) -> None: ...
def top_logprobs(
    logits: Sequence[_Float32s],
    tokens: _Int32s,
    counts: _Int32s,
    chosen: _Float64s,
    ranks: _Int32s,
    ids: _Int32s,
    values: _Float64s,
) -> None: ...
