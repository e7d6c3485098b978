"""`suffice plan`: how many engines of how many cores hold a load, by simulation."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from suffice.cli.options import ModelFlags
from suffice.cli.output import markdown
from suffice.cli.plan_flags import LoadFlags, PlanFlags
from suffice.errors import InputError, OptionError, SufficeWarning, one_line
from suffice.progress import counted, counting_bar

if TYPE_CHECKING:
    from suffice.engine.config import Config
    from suffice.plan.search import Try
    from suffice.plan.setting import Setting
    from suffice.plan.stored import Calibration
    from suffice.plan.trace import Arrival

_EXTRA = "pip install 'suffice[serve]'"
_DISTURBED = 0.1  # median error of a call's fitted seconds; a quiet machine has 0.02 to 0.07


def run(*, load: LoadFlags, flags: PlanFlags, model: ModelFlags) -> None:
    """Find how many engines hold a load. Exit code 1: no number that was tried does.

    Raises:
        InputError: A flag, the file or the model cannot be used.
    """
    try:
        from suffice.plan import figures
    except ImportError as error:
        raise InputError(f"`suffice plan` needs {error.name}: {_EXTRA}") from None
    flags.check()
    limits, goal, kinds = figures.goals(flags.slo), figures.share(flags.goal), _cores(flags.cores)
    _check_plot(flags.plot)
    for cores in kinds:
        if flags.node_cores is not None and cores > flags.node_cores:
            raise OptionError("cores", cores, f"must be at most --node-cores {flags.node_cores}")
    config = model.config()
    arrivals = load.load() if load.given or not flags.calibrate else []
    found = _calibration(config, model, flags, kinds)
    if not arrivals:
        print(drawn(found))
        return
    _warn_of_long(arrivals, found.model.context)
    tries = {
        _label(cores): _tried(found, arrivals, limits, goal, flags, config, cores)
        for cores in kinds or [found.threads]
    }
    _print(tries, flags, found)
    if flags.plot is not None:
        _save(flags.plot, tries, limits)
    if not any(each.holds for own in tries.values() for each in own):
        raise click.exceptions.Exit(1)


def _warn_of_long(arrivals: Sequence[Arrival], context: int) -> None:
    """Say how many requests the context is too small for, since their goals mean little."""
    long = [each for each in arrivals if each.prompt_tokens + each.output_tokens > context]
    if long:
        first = f"{long[0].prompt_tokens} + {long[0].output_tokens}"
        warnings.warn(
            f"{len(long)} of {len(arrivals)} requests exceed the context of {context} tokens (the "
            f"first has {first}): such answers end there, longer prompts are refused",
            SufficeWarning,
            stacklevel=2,
        )


def _label(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def _cores(text: str | None) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        found = [0]
    if any(each < 1 for each in found) or len(set(found)) < len(found):
        raise OptionError("cores", text, "must be whole numbers of at least 1, such as 4 or 4,8")
    return found


def _check_plot(path: Path | None) -> None:
    if path is None:
        return
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            "plots need matplotlib, which is not installed: install suffice[plot]"
        ) from None
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot {path}: must end in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder '{path.parent}'")


def _calibration(
    config: Config, model: ModelFlags, flags: PlanFlags, kinds: Sequence[int]
) -> Calibration:
    """Return the costs of a model's steps, measured now if they are not known."""
    from suffice import native
    from suffice.checkpoints.files import fingerprint, locate
    from suffice.plan import calibrate, stored

    calibrate.check(config)
    plain = dataclasses.replace(config, threads=None, kv_cache_bytes=None, seed=None)
    stamp = f"{fingerprint(locate(config.model))} {plain}".encode()
    options = hashlib.blake2b(stamp, digest_size=8).hexdigest()
    threads = config.threads or (min(kinds[0], native.cores()) if kinds else native.cores())
    known = None if flags.calibrate else stored.find(options, threads, native.isa())
    if known is not None:
        return known
    config = dataclasses.replace(config, threads=threads, kv_cache_bytes=None)
    kept = stored.unfinished(options, threads, native.isa())
    return _measured(config, options, kept)


def _measured(config: Config, options: str, kept: Path) -> Calibration:
    """Measure a model's steps, or go on with that, and keep the calibration."""
    from suffice.plan import calibrate, stored

    print(
        f"measuring the steps of {config.model} on {config.threads} threads",
        file=sys.stderr,
        flush=True,
    )
    try:
        with calibrate.Measuring(config, options, kept) as measuring:
            if measuring.done:
                print(f"{measuring.done} measurements are kept of an earlier run", file=sys.stderr)
            for _ in counted("steps", measuring.total, measuring.steps(), measuring.done):
                pass
            found = measuring.result()
    except KeyboardInterrupt:
        count = len(stored.parts(kept, calibrate.Part))
        print(
            f"interrupted: {count} measurements are kept; the same command goes on", file=sys.stderr
        )
        raise
    if found.residual.median > _DISTURBED:
        error = f"{found.residual.median:.0%}"
        print(
            f"measured steps differ from their costs by {error} in the median: the machine did "
            "other work, too; --calibrate measures again",
            file=sys.stderr,
        )
    stored.save(found)
    kept.unlink(missing_ok=True)
    return found


def _tried(
    found: Calibration,
    arrivals: Sequence[Arrival],
    limits: dict[str, float],
    goal: float,
    flags: PlanFlags,
    config: Config,
    cores: int,
) -> list[Try]:
    from suffice import native
    from suffice.plan import figures, search
    from suffice.plan.cluster import Cluster

    def simulate(instances: int, together: int | None = None) -> dict[str, Any]:
        cluster = Cluster(_setting(found, flags, config, instances, cores), found)
        with _shown(f"{instances} x {_label(cores)}", len(arrivals)) as tell:
            run = cluster.run(arrivals, concurrency=together, tell=tell)
        return figures.summary(run, limits)

    before, own = native.threads(), []
    native.set_threads(1)  # sampling is all that the simulation leaves to the core
    try:
        for each in search.smallest(
            simulate, goal, flags.most, flags.instances, alone=lambda: simulate(1, together=1)
        ):
            line = f"{each.instances} x {_label(cores)}: {each.reason}"
            print(line, file=sys.stderr, flush=True)
            own.append(each)
    finally:
        native.set_threads(before)
    return own


def _setting(
    found: Calibration, flags: PlanFlags, config: Config, instances: int, cores: int
) -> Setting:
    from suffice.engine.service import DEFAULT_PREFIX_BYTES
    from suffice.plan.setting import FrontCosts, setting

    limit = config.kv_cache_bytes or 0
    kept = flags.limits()["prefix_bytes"]
    own = {"request": flags.front_request_us, "token": flags.front_token_us}
    front = FrontCosts(**{name: value / 1e6 for name, value in own.items() if value is not None})
    return setting(
        found,
        instances,
        cores,
        flags.node_cores,
        None if flags.bandwidth is None else flags.bandwidth * 1e9,
        places=flags.parallel,
        max_queue=flags.max_queue,
        step_seconds=flags.step_ms / 1000,
        prefix_bytes=(limit or DEFAULT_PREFIX_BYTES) if kept is None else kept,
        kv_cache_bytes=limit,
        front=front,
        front_apart=flags.front_apart,
    )


@contextlib.contextmanager
def _shown(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many requests have ended, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with counting_bar() as bar:
        line = bar.add_task(what, total=total)
        yield lambda: bar.update(line, advance=1)


def _print(tries: dict[str, list[Try]], flags: PlanFlags, found: Calibration) -> None:
    if flags.output == "json":
        data = {label: list(map(dataclasses.asdict, own)) for label, own in tries.items()}
        print(json.dumps(_known(data), indent=1))
        return
    print(table(tries, found))


def _known(value: Any) -> Any:
    """Return a value for JSON, with None for what nobody knows: times, if nothing was answered."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_known, value))
    return None if isinstance(value, float) and math.isnan(value) else value


def table(tries: dict[str, list[Try]], found: Calibration) -> str:
    """Return what was found for each kind of engine, as a table."""
    from suffice.plan.search import fewest

    rows = []
    for label, own in tries.items():
        each = fewest(own)
        figures = each.figures
        lacking = "no number" if each.vain else f"more than {each.instances}"

        def spread(name: str, figures: dict[str, Any] = figures) -> str:
            times = [figures[f"p{at}_{name}_ms"] for at in (50, 95, 99)]
            return "-" if math.isnan(times[0]) else " / ".join(f"{each:.3g}" for each in times)

        rows.append(
            [
                f"{each.instances} x {label}" if each.holds else lacking,
                f"{figures['held']:.2%}",
                *map(spread, ("ttft", "tpot", "gap", "queue")),
                f"{figures['utilisation']:.0%}",
                f"{figures['front_utilisation']:.0%}",
                f"{figures['most_bytes'] / 1e6:.0f} MB",
            ]
        )
    columns = ["engines", "hold the goals", "TTFT, ms (p50 / p95 / p99)", "TPOT, ms"]
    columns += ["longest gap, ms", "queue, ms", "engines at work", "front at work", "caches"]
    costs = f"{found.model.name}, {found.threads} threads, measured {found.measured}"
    error = f"error of a call: median {found.residual.median:.1%}, p95 {found.residual.p95:.1%}"
    return f"{markdown(columns, rows)}\n\ncosts: {costs}; {error}"


def drawn(found: Calibration) -> str:
    """Return the costs of a calibration as a table."""
    from suffice.plan.costs import Call

    costs = found.costs
    rows = [
        [f"{rows} samples, depth {depth}", f"{1e3 * costs.seconds(call):.2f}"]
        for rows in (1, 8, 32)
        for depth in (128, 2048)
        for call in [Call(rows, rows, rows * depth)]
    ]
    rows += [
        [f"128 tokens of a prompt after {depth}", f"{1e3 * costs.seconds(call):.2f}"]
        for depth in (0, 2048)
        for call in [Call(128, 1, 0, 128 * depth + 128 * 64)]
    ]
    rows.append(["between two steps of 8 samples", f"{1e3 * costs.overhead(8):.2f}"])
    rows.append(["mapping 1 MB of new memory", f"{1e9 * costs.mapped:.2f}"])
    rows.append(["copying 1 MB of a cache", f"{1e9 * costs.copied:.2f}"])
    fit = found.residual
    errors = f"median {fit.median:.1%}, p95 {fit.p95:.1%} of {fit.measured} calls"
    return f"{markdown(['what', 'ms'], rows)}\n\nerror of the fit: {errors}"


def _save(path: Path, tries: dict[str, list[Try]], limits: dict[str, float]) -> None:
    from suffice.paths import write_whole
    from suffice.plan import plot

    try:
        with write_whole(path) as part:
            plot.save(part, path.suffix[1:], tries, limits)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot be written: {one_line(error.strerror)}") from None
