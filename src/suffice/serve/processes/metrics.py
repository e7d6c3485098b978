"""Prometheus metrics, by vLLM's names, and the reads of keys and values on top."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from suffice.engine.work import Delta, Final
from suffice.serve.processes.tally import Counter, Histogram, together

if TYPE_CHECKING:
    from suffice.serve.processes.pending import Ticket

_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.75, 1.0, 2.5, 10.0)
_COUNTS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Time to the first token.", _SECONDS),
    "inter_token_latency_seconds": ("Time between tokens of a request.", _BETWEEN),
    "request_time_per_output_token_seconds": ("Mean time per token after the first.", _BETWEEN),
    "e2e_request_latency_seconds": ("Time of a whole request.", _SECONDS),
    "request_queue_time_seconds": ("Time in the queue.", _SECONDS),
    "request_inference_time_seconds": ("Time from start to end.", _SECONDS),
    "request_prefill_time_seconds": ("Time of the prompt.", _SECONDS),
    "request_decode_time_seconds": ("Time from the first token to the end.", _SECONDS),
    "request_prompt_tokens": ("Tokens of a prompt.", _COUNTS),
    "request_generation_tokens": ("Tokens generated for a request.", _COUNTS),
    "request_params_n": ("Samples asked for.", (1, 2, 5, 10, 20)),
    "request_params_max_tokens": ("Most tokens asked for.", _COUNTS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that were not cached.", _COUNTS),
    "request_num_preemptions": ("How often a request was parked.", (0, 1, 2, 5, 10, 20, 50)),
    "iteration_tokens_total": ("Tokens of a step, of prompts and answers.", _COUNTS),
}
_COUNTERS = {
    "prompt_tokens": ("Prompt tokens.", ()),
    "prompt_tokens_cached": ("Prompt tokens that were cached.", ()),
    "prompt_tokens_by_source": ("Prompt tokens, run or cached.", ("source",)),
    "generation_tokens": ("Generated tokens.", ()),
    "request_success": ("Requests that ended, by reason.", ("finished_reason",)),
    "spec_decode_num_drafts": ("Steps of a sample that had drafts to check.", ()),
    "spec_decode_num_draft_tokens": ("Drafted tokens.", ()),
    "spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted.", ()),
    "spec_decode_num_accepted_tokens_per_pos": ("The same, by position.", ("position",)),
    "kv_rows_read": ("Rows of keys or values read by decode steps.", ("what",)),
    "kv_rows_held": ("Rows that exact attention would have read.", ()),
    "kv_bytes_read": ("Bytes of keys and values read by decode steps.", ()),
    "kv_bytes_held": ("Bytes that exact attention would have read.", ()),
    "prompt_tile_rows_read": ("Rows of keys that tiles of prompts read.", ()),
    "prompt_tile_rows_held": ("Rows of keys that tiles of prompts saw.", ()),
    "bounded_softmaxes": ("Softmaxes with a known bound, by guarantee.", ("guarantee",)),
    "missing_bound_sum": ("Sum of these bounds, of shares left unread.", ("guarantee",)),
    "shift_bound_sum": ("Sum of bounds on how far outputs are moved.", ("guarantee",)),
}
# The largest; those at a confidence may be exceeded.
_BOUNDS = {
    "missing_bound_max": "Largest share of a softmax left unread, where attention bounds it.",
    "missing_probable_max": "Largest share of a softmax left unread, bounded at a confidence.",
    "shift_bound_max": "Most that an output is moved, where attention bounds it.",
    "shift_probable_max": "Most that an output is moved, bounded at a confidence.",
}
# Of the engine's counts: our name, its field, and what it is.
_GAUGES = (
    ("num_requests_running", "running", "Requests that run."),
    ("num_requests_waiting", "waiting", "Requests that wait."),
    ("retained_bytes", "prefix_bytes", "Bytes of kept prefixes."),
    ("retained_entries", "prefix_entries", "Kept prefixes."),
    ("disk_prefix_bytes", "disk_bytes", "Bytes of kept prefixes on disk, as an engine knows."),
)
_SUMS = (
    ("prefix_cache_queries", "prefix_queries", "Prompt tokens looked up in kept prefixes."),
    ("prefix_cache_hits", "prefix_hits", "Prompt tokens found in kept prefixes."),
    ("disk_prefix_queries", "disk_prefix_queries", "Prompt tokens looked up on disk."),
    ("disk_prefix_hits", "disk_prefix_hits", "Prompt tokens read from disk."),
    ("disk_blocks_read", "disk_blocks_read", "Blocks of prompts read from disk."),
    ("disk_bytes_read", "disk_bytes_read", "Their bytes."),
    ("disk_blocks_written", "disk_blocks_written", "Blocks of prompts written to disk."),
    ("disk_bytes_written", "disk_bytes_written", "Their bytes."),
    ("disk_blocks_damaged", "disk_blocks_damaged", "Damaged blocks found and removed."),
    ("disk_blocks_failed", "disk_blocks_failed", "Blocks that could not be read or written."),
    ("disk_blocks_removed", "disk_blocks_removed", "Blocks removed for age or room."),
    ("num_preemptions", "preemptions", "Requests parked for lack of memory."),
    ("engine_steps", "steps", "Steps of the engine."),
    ("prompt_rows_copied", "prompt_rows_copied", "Prompt tokens copied from other caches."),
    ("growth_copies_bytes", "growth_bytes_copied", "Bytes copied when caches grew."),
    ("weight_bytes_read", "weight_bytes_read", "Bytes of weights that decode steps read."),
    ("experts_read", "experts_read", "Experts of layers that steps read."),
    ("experts_held", "experts_held", "Experts of layers that there are, for each step."),
    ("expert_bytes_read", "expert_bytes_read", "Bytes of experts that steps read."),
    ("expert_bytes_held", "expert_bytes_held", "Bytes of all experts, for each step."),
    ("engine_key_rows_read", "key_rows_read", "Rows of keys that the engine's steps read."),
    ("engine_value_rows_read", "value_rows_read", "Rows of values that the engine's steps read."),
)
_MOVED = "Bytes of states that decode steps read and wrote, of models that have states."


class Watched(Protocol):
    """What gauges are read from."""

    @property
    def failovers(self) -> int:
        """Requests that went on in it after another died."""

    @property
    def stats(self) -> Mapping[str, Any]:
        """The last counts."""

    @property
    def restarts(self) -> int:
        """How often the engine died."""

    @property
    def past(self) -> Mapping[str, float]:
        """The sums of the counts that engines died with."""


class Metrics:
    """The metrics of one model."""

    def __init__(self, prefix: str, model: str) -> None:
        self._prefix = prefix
        self._labels = {"model_name": model}
        self._engines: dict[str, _Requests] = {}  # by the engines' names
        self._refused = Counter(["reason"])
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch(self, engines: Callable[[], Mapping[str, Watched]]) -> None:
        """Show the counts of the engines that a function returns by name, now and later."""
        for name in engines():
            self._of(name)
        self._registry.register(_Counts(self._prefix, self._labels, engines))

    def _of(self, name: str) -> _Requests:
        found = self._engines.get(name)
        if found is None:
            found = self._engines[name] = _Requests()
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of requests: each under the name of the engine that ran it."""
        if self._engines:
            yield from self._by_engine()
        text, name = "Requests refused before they ran.", f"{self._prefix}:admission_rejections"
        yield self._refused.family(name, text, self._labels)

    def _by_engine(self) -> Iterator[Metric]:
        engines = list(self._engines.values())
        labels = [{**self._labels, "engine": name} for name in self._engines]
        for name, (text, _) in _HISTOGRAMS.items():
            own = [each.histograms[name] for each in engines]
            yield together(f"{self._prefix}:{name}", text, own, labels)
        for name, (text, _) in _COUNTERS.items():
            sums = [each.counters[name] for each in engines]
            yield together(f"{self._prefix}:{name}", text, sums, labels)
        for name, text in _BOUNDS.items():
            bound = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=[*labels[0]])
            for each, own_labels in zip(engines, labels, strict=True):
                bound.add_metric([*own_labels.values()], each.bounds[name])
            yield bound

    def families(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self._registry.collect()

    def steps(self, engine: str, tokens: Sequence[int]) -> None:
        """Count steps of an engine by the tokens that they ran."""
        self._of(engine).steps(tokens)

    def refused(self, reason: str) -> None:
        """Count a request that was refused."""
        self._refused.add(1, reason)

    def delta(self, ticket: Ticket, delta: Delta, now: float) -> None:
        """Count the tokens of a delta that came now, and the time since the last one."""
        self._of(ticket.ran_in).delta(ticket, delta, now)

    def finished(self, ticket: Ticket) -> None:
        """Count a request that ended, or was ended, under the engine that had it last."""
        self._of(ticket.ran_in).finished(ticket)


def page_of(models: Sequence[Metrics]) -> bytes:
    """Return the metrics of models in Prometheus's text form: each name once, with all models."""
    found: dict[str, Metric] = {}
    for each in models:
        for family in each.families():
            held = found.setdefault(family.name, family)
            if held is not family:
                held.samples += family.samples
    registry = CollectorRegistry()
    registry.register(_Found(found.values()))
    return generate_latest(registry)


class _Found:
    """Metrics as a registry takes them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


class _Requests:
    """The counts of the requests that one engine runs.

    Attributes:
        bounds: The largest bounds, by the names of their metrics.
    """

    def __init__(self) -> None:
        self.histograms = {name: Histogram(buckets) for name, (_, buckets) in _HISTOGRAMS.items()}
        self.counters = {name: Counter(labels) for name, (_, labels) in _COUNTERS.items()}
        self.bounds = dict.fromkeys(_BOUNDS, 0.0)
        self._between = self.histograms["inter_token_latency_seconds"]
        self._first = self.histograms["time_to_first_token_seconds"]

    def steps(self, tokens: Sequence[int]) -> None:
        """See `Metrics.steps`."""
        for each in tokens:
            self.histograms["iteration_tokens_total"].observe(each)

    def delta(self, ticket: Ticket, delta: Delta, now: float) -> None:
        """See `Metrics.delta`."""
        if not delta.tokens:
            return
        self._count("generation_tokens", len(delta.tokens))
        if ticket.first_at is None:
            self._first.observe(now - ticket.created)
        else:
            self._between.observe(now - ticket.last_at)

    def finished(self, ticket: Ticket) -> None:
        """See `Metrics.finished`."""
        now, seen = time.monotonic(), self.histograms
        reason = "abort" if ticket.final is None else ticket.reason
        self._count("request_success", 1, reason)
        seen["e2e_request_latency_seconds"].observe(now - ticket.created)
        seen["request_prompt_tokens"].observe(len(ticket.work.prompt))
        seen["request_generation_tokens"].observe(ticket.generated)
        seen["request_params_n"].observe(ticket.samples)
        if (most := ticket.work.params.get("max_tokens")) is not None:
            seen["request_params_max_tokens"].observe(most)
        if ticket.first_at is not None and ticket.generated > ticket.samples:
            spent = ticket.last_at - ticket.first_at
            steps = ticket.generated / ticket.samples - 1
            seen["request_time_per_output_token_seconds"].observe(spent / steps)
        self._count("prompt_tokens", len(ticket.work.prompt))
        if ticket.final is not None:
            self._spent(ticket.final)

    def _spent(self, final: Final) -> None:
        seen = self.histograms
        seen["request_queue_time_seconds"].observe(final.queue_seconds)
        seen["request_prefill_time_seconds"].observe(final.prefill_seconds)
        seen["request_decode_time_seconds"].observe(final.decode_seconds)
        seen["request_inference_time_seconds"].observe(final.prefill_seconds + final.decode_seconds)
        computed = final.prompt_tokens - final.cached_tokens
        seen["request_prefill_kv_computed_tokens"].observe(computed)
        seen["request_num_preemptions"].observe(final.preemptions)
        self._count("prompt_tokens_cached", final.cached_tokens)
        self._count("prompt_tokens_by_source", computed, "local_compute")
        disk = final.cached_from_disk
        self._count("prompt_tokens_by_source", final.cached_tokens - disk, "local_cache_hit")
        self._count("prompt_tokens_by_source", disk, "disk")
        self._count("spec_decode_num_drafts", final.draft_steps)
        for position, accepted in enumerate(final.accepted_at):
            self._count("spec_decode_num_accepted_tokens_per_pos", accepted, str(position))
        self._count("spec_decode_num_draft_tokens", final.drafts)
        self._count("spec_decode_num_accepted_tokens", final.accepted)
        self._count("kv_rows_read", final.key_rows_read, "key")
        self._count("kv_rows_read", final.value_rows_read, "value")
        self._count("kv_rows_held", final.rows_held)
        self._count("kv_bytes_read", final.bytes_read)
        self._count("kv_bytes_held", final.bytes_held)
        self._count("prompt_tile_rows_read", final.prompt_rows_read)
        self._count("prompt_tile_rows_held", final.prompt_rows_held)
        self._bounded(final)

    def _bounded(self, final: Final) -> None:
        kind = final.guarantee.partition(",")[0]
        if kind not in ("bound", "probable"):
            return
        self._count("bounded_softmaxes", final.softmaxes, kind)
        for what in ("missing", "shift"):
            name, mean = f"{what}_{kind}_max", getattr(final, f"{what}_mean")
            self.bounds[name] = max(self.bounds[name], getattr(final, what) or 0.0)
            self._count(f"{what}_bound_sum", (mean or 0.0) * final.softmaxes, kind)

    def _count(self, name: str, by: float, *labels: str) -> None:
        self.counters[name].add(by, *labels)


class _Counts:
    """Reads engines' counts when Prometheus asks; sums go on when an engine is replaced."""

    def __init__(
        self, prefix: str, labels: dict[str, str], engines: Callable[[], Mapping[str, Watched]]
    ) -> None:
        self._prefix, self._labels, self._engines = prefix, labels, engines
        self._names = [*labels, "engine"]
        self._values: list[list[str]] = []  # of the labels, for each engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        named = self._engines()
        self._values = [[*self._labels.values(), name] for name in named]
        engines = list(named.values())
        stats = [each.stats for each in engines]
        for name, field, text in _GAUGES:
            yield self._gauge(name, text, [float(each.get(field, 0)) for each in stats])
        live = [each.get("kv_bytes_used", 0) - each.get("prefix_bytes", 0) for each in stats]
        yield self._gauge("kv_cache_bytes_used", "Bytes of live keys and values.", live)
        limits = [each.get("kv_bytes_limit", 0) or float("inf") for each in stats]
        shares = [used / limit for used, limit in zip(live, limits, strict=True)]
        yield self._gauge("kv_cache_usage_perc", "Live bytes over the limit, 0 to 1.", shares)
        yield self._waiting(stats)
        for name, field, text in _SUMS:
            yield self._counter(name, text, [_sum(each, field) for each in engines])
        if any(moved := [_sum(each, "state_bytes_moved") for each in engines]):
            yield self._counter("state_bytes_moved", _MOVED, moved)
        deaths = [float(each.restarts) for each in engines]
        yield self._counter("instance_restarts", "Engines that died.", deaths)
        moves = [float(each.failovers) for each in engines]
        yield self._counter("failovers", "Requests that outlived an engine.", moves)

    def _waiting(self, stats: Sequence[Mapping[str, float]]) -> Metric:
        """Return who waits, for places or memory or for another's prompt that begins alike."""
        name, text = (
            f"{self._prefix}:num_requests_waiting_by_reason",
            "Requests that wait, and why.",
        )
        gauge = GaugeMetricFamily(name, text, labels=[*self._names, "reason"])
        for labels, each in zip(self._values, stats, strict=True):
            deferred = each.get("deferred", 0)
            gauge.add_metric([*labels, "capacity"], each.get("waiting", 0) - deferred)
            gauge.add_metric([*labels, "deferred"], deferred)
        return gauge

    def _gauge(self, name: str, text: str, values: Sequence[float]) -> Metric:
        gauge = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=self._names)
        for labels, value in zip(self._values, values, strict=True):
            gauge.add_metric(labels, value)
        return gauge

    def _counter(self, name: str, text: str, values: Sequence[float]) -> Metric:
        counter = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=self._names)
        for labels, value in zip(self._values, values, strict=True):
            counter.add_metric(labels, value)
        return counter


def _sum(engine: Watched, field: str) -> float:
    return float(engine.past.get(field, 0) + engine.stats.get(field, 0))
