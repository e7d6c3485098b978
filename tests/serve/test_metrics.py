"""Figures of /metrics on known requests: metrics.py, and the counts of engines behind it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from serving import Served, real
from suffice.engine.work import Delta, EngineStats, Final
from suffice.serve.processes import wire
from suffice.serve.processes.metrics import Metrics, page_of
from suffice.serve.processes.pending import Ticket


class Page:
    """Reads a page of metrics: sums over the labels that are not asked for."""

    def __init__(self, page: bytes | str) -> None:
        text = page if isinstance(page, str) else page.decode()
        self.values: Counter[tuple[str, str]] = Counter()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = re.fullmatch(r"\w+:(\w+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
                self.values[name, labels] = float(value)

    def __call__(self, name: str, **labels: str) -> float:
        asked = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for (found, have), value in self.values.items()
            if found == name and all(each in have for each in asked)
        )


def ticket(final: Final) -> Ticket:
    work = wire.Submit("a", [1] * final.prompt_tokens, {"max_tokens": 8})
    made = Ticket(work, 1, 0, None)  # type: ignore[arg-type]
    made.final, made.reason = final, "stop"
    return made


def test_what_requests_cost() -> None:
    metrics = Metrics("suffice", "m")
    first = Final(
        100, 40, 8, drafts=12, draft_steps=3, accepted=4, accepted_at=(3, 1), preemptions=1
    )
    bounded = Final(10, 0, 8, drafts=4, draft_steps=1, accepted=1, accepted_at=(1,))
    for final in (first, bounded):
        metrics.finished(ticket(final))
    page = Page(page_of([metrics]))
    assert page("prompt_tokens_total") == 110
    assert page("prompt_tokens_by_source_total", source="local_compute") == 70
    assert page("prompt_tokens_by_source_total", source="local_cache_hit") == 40
    assert page("request_prefill_kv_computed_tokens_sum") == 70
    assert page("request_num_preemptions_sum") == 1
    assert page("request_num_preemptions_bucket", le="0.0") == 1
    assert page("spec_decode_num_drafts_total") == 4
    assert page("spec_decode_num_accepted_tokens_per_pos_total", position="0") == 4
    assert page("spec_decode_num_accepted_tokens_per_pos_total", position="1") == 1
    assert page("missing_bound_max") == 0


def test_the_times_of_tokens() -> None:
    metrics = Metrics("suffice", "m")
    one = ticket(Final(1, 0, 2))
    one.created = 100.0
    token = Delta("a", 0, "x", (5,))
    metrics.delta(one, token, 100.5)
    one.first_at = one.last_at = 100.5
    metrics.delta(one, token, 100.75)
    page = Page(page_of([metrics]))
    assert page("time_to_first_token_seconds_sum") == 0.5
    assert page("inter_token_latency_seconds_sum") == 0.25


def test_only_what_is_bounded_counts_as_a_bound() -> None:
    metrics = Metrics("suffice", "m")
    for guarantee, missing in (
        *(("bound", 0.02), ("bound", 0.01)),
        *(("probable", 0.4), ("estimate", 0.5), ("none", None)),
    ):
        metrics.finished(ticket(Final(1, 0, 1, guarantee=guarantee, missing=missing)))  # type: ignore[arg-type]
    assert Page(page_of([metrics]))("missing_bound_max") == 0.02
    assert Page(page_of([metrics]))("missing_probable_max") == 0.4


def test_bounds_and_the_reads_of_prompts_are_counted() -> None:
    metrics = Metrics("suffice", "m")
    for guarantee, mean in (("bound", 0.25), ("bound, prompt approximate", 0.5)):
        final = Final(1, 0, 1, guarantee=guarantee, missing=0.7, softmaxes=8)  # type: ignore[arg-type]
        shifts = {"shift": 1.5, "shift_mean": 2 * mean}
        rows = {"prompt_rows_read": 10, "prompt_rows_held": 30}
        counted = dataclasses.replace(final, missing_mean=mean, **shifts, **rows)
        metrics.finished(ticket(counted))
    page = Page(page_of([metrics]))
    assert page("bounded_softmaxes_total", guarantee="bound") == 16
    assert page("missing_bound_sum_total", guarantee="bound") == 8 * 0.25 + 8 * 0.5
    assert page("shift_bound_sum_total", guarantee="bound") == 8 * 0.5 + 8 * 1.0
    assert page("shift_bound_max") == 1.5 and page("missing_probable_max") == 0
    assert page("prompt_tile_rows_read_total") == 20
    assert page("prompt_tile_rows_held_total") == 60


def test_what_engines_count() -> None:
    """Counts of engines that died stay in sums; live bytes leave out kept prefixes."""
    past = Counter(
        {
            "state_bytes_moved": 4,
            "weight_bytes_read": 5,
            "growth_bytes_copied": 1,
            "prompt_rows_copied": 2,
        }
    )
    stats = EngineStats(
        waiting=5,
        deferred=2,
        kv_bytes_used=900,
        kv_bytes_limit=1000,
        prefix_bytes=400,
        weight_bytes_read=7,
        experts_read=3,
        state_bytes_moved=8,
        expert_bytes_held=50,
        growth_bytes_copied=10,
        prompt_rows_copied=64,
    )
    engine = SimpleNamespace(stats=vars(stats), past=past, restarts=1, failovers=0)
    metrics = Metrics("suffice", "m")
    metrics.watch(lambda: {"0": engine})
    metrics.steps("0", [8, 64, 64])
    page = Page(page_of([metrics]))
    assert page("num_requests_waiting") == 5
    assert page("num_requests_waiting_by_reason", reason="deferred") == 2
    assert page("num_requests_waiting_by_reason", reason="capacity") == 3
    assert page("kv_cache_bytes_used") == 500 and page("kv_cache_usage_perc") == 0.5
    assert page("weight_bytes_read_total") == 12
    assert page("state_bytes_moved_total") == 12
    assert page("experts_read_total") == 3 and page("experts_held_total") == 0
    assert page("expert_bytes_held_total") == 50
    assert page("growth_copies_bytes_total") == 11
    assert page("prompt_rows_copied_total") == 66
    assert page("iteration_tokens_total_count") == 3
    assert page("iteration_tokens_total_sum") == 136


def test_engines_may_come_later_each_by_its_name() -> None:
    engines: dict[str, Any] = {}
    metrics = Metrics("suffice", "m")
    metrics.watch(lambda: engines)
    assert Page(page_of([metrics])).values == {}
    for name, count in (("a1", 3), ("b2", 4)):
        stats = vars(EngineStats(steps=count))
        engines[name] = SimpleNamespace(stats=stats, past={}, restarts=0, failovers=count)
        one = ticket(Final(10, 0, 8))
        one.replica = name
        metrics.finished(one)
    metrics.finished(one)
    page = Page(page_of([metrics]))
    assert [page("prompt_tokens_total", engine=name) for name in ("a1", "b2", "0")] == [10, 20, 0]
    assert [page("engine_steps_total", engine=name) for name in ("a1", "b2")] == [3, 4]
    assert page("failovers_total", engine="b2") == 4 and page("failovers_total") == 7


def settled(server: Served) -> Page:
    """Return the metrics once the engine has told its last counts."""
    end, page = time.monotonic() + 20, Page(server.client.get("/metrics").text)
    while page("iteration_tokens_total_sum") != page("generation_tokens_total") + page(
        "prompt_tokens_by_source_total", source="local_compute"
    ):
        assert time.monotonic() < end, "the steps' tokens are not those of the requests"
        time.sleep(0.05)
        page = Page(server.client.get("/metrics").text)
    return page


def test_a_real_engine(words: Path) -> None:
    with real(words, growth="step:rows=64") as server:
        fields: dict[str, Any] = {"max_tokens": 70, "ignore_eos": True, "n": 2, "seed": 1}
        prompt = list(range(3, 83))
        for tail in ([3], [4, 5]):
            body = {"prompt": prompt + tail, **fields}
            assert server.post("/v1/completions", body).status_code == 200
        page = settled(server)
        assert page("prompt_tokens_by_source_total", source="local_compute") == 81 + 2
        assert page("prompt_tokens_by_source_total", source="local_cache_hit") == 80
        assert page("prompt_rows_copied_total") in (0, 80), "taken over or copied"
        assert page("generation_tokens_total") == 280
        assert page("weight_bytes_read_total") > 0 and page("growth_copies_bytes_total") > 0
