"""Declares the commands of `suffice eval`, which measure the quality and speed of a setting."""

from __future__ import annotations

from suffice.cli.adapters import AdapterFlags
from suffice.cli.eval.options import (
    LatencyFlags,
    LongBenchFlags,
    PerplexityFlags,
    RulerFlags,
    TasksFlags,
)
from suffice.cli.groups import Commands
from suffice.cli.options import ModelFlags

evaluate = Commands("eval")


@evaluate.program()
def perplexity(*, flags: PerplexityFlags, model: ModelFlags, adapters: AdapterFlags) -> None:
    """Measure the perplexity of a text."""
    from suffice.cli.eval import perplexity as measuring

    measuring.run(flags, adapters.usual(model, "eval perplexity"))


@evaluate.program()
def latency(*, flags: LatencyFlags, model: ModelFlags, adapters: AdapterFlags) -> None:
    """Measure latency and throughput of requests: TTFT, TPOT, ITL, tokens per second."""
    from suffice.cli.eval import latency as measuring

    measuring.run(flags, adapters.usual(model, "eval latency"))


@evaluate.program()
def longbench(*, flags: LongBenchFlags, model: ModelFlags, adapters: AdapterFlags) -> None:
    """Measure answers to questions on long texts, summaries and code (LongBench)."""
    from suffice.cli.eval import longbench as measuring

    measuring.run(flags, adapters.usual(model, "eval longbench"))


@evaluate.program()
def ruler(*, flags: RulerFlags, model: ModelFlags, adapters: AdapterFlags) -> None:
    """Measure whether the model retrieves facts hidden in long prompts (RULER)."""
    from suffice.cli.eval import ruler as measuring

    measuring.run(flags, adapters.usual(model, "eval ruler"))


@evaluate.program()
def tasks(*, flags: TasksFlags, model: ModelFlags, adapters: AdapterFlags) -> None:
    """Measure the accuracy of the model on multiple-choice questions."""
    from suffice.cli.eval import tasks as measuring

    measuring.run(flags, adapters.usual(model, "eval tasks"))
