"""The commands of `suffice eval`: what a setting costs in quality, and how fast it is."""

from __future__ import annotations

import typer

from suffice.cli.eval.options import LatencyFlags, PerplexityFlags, RulerFlags, TasksFlags
from suffice.cli.flags import with_flags
from suffice.cli.options import ModelFlags

evaluate = typer.Typer(help="Measure what a setting costs in quality.", no_args_is_help=True)


@evaluate.command()
@with_flags
def perplexity(*, flags: PerplexityFlags, model: ModelFlags) -> None:
    """Measure how well the model predicts a text, alone or against its exact self."""
    from suffice.cli.eval import perplexity as measuring

    measuring.run(flags, model)


@evaluate.command()
@evaluate.command("speed", hidden=True)  # its name until 0.3
@with_flags
def latency(*, flags: LatencyFlags, model: ModelFlags) -> None:
    """Measure how long users wait for tokens: TTFT, TPOT, ITL, throughput, bytes read."""
    from suffice.cli.eval import latency as measuring

    measuring.run(flags, model)


@evaluate.command()
@with_flags
def ruler(*, flags: RulerFlags, model: ModelFlags) -> None:
    """Measure whether the model finds in long prompts what was hidden there (RULER)."""
    from suffice.cli.eval import ruler as measuring

    measuring.run(flags, model)


@evaluate.command()
@with_flags
def tasks(*, flags: TasksFlags, model: ModelFlags) -> None:
    """Measure how often the model answers multiple-choice questions rightly."""
    from suffice.cli.eval import tasks as measuring

    measuring.run(flags, model)
