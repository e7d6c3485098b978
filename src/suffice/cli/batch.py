"""`suffice batch`: answers a file of requests in OpenAI's batch format."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cli.adapters import AdapterFlags
from suffice.cli.answer import prompts_read
from suffice.cli.flags import flag
from suffice.cli.interrupt import terminates_as_interrupt
from suffice.cli.options import ModelFlags
from suffice.cli.prefixes import PrefixFlags
from suffice.cli.serve import engine_options
from suffice.errors import InputError
from suffice.flags import again
from suffice.progress import EVERY, counting_bar
from suffice.serve.settings import Settings

if TYPE_CHECKING:
    from suffice.serve.batch import Counts
    from suffice.serve.batch_setting import Setting

_EXTRA = "pip install 'suffice[serve]'"
_RAY = "pip install 'suffice[ray]'"
HERE = "auto"  # the address of `--ray` without one


@dataclass(frozen=True)
class BatchFlags:
    """The files, and how many requests run at a time."""

    requests: Path | None = flag(
        None,
        "-i --input --input-file",
        "Requests in OpenAI's batch format, one JSON object per line.",
        environment=False,
        metavar="FILE",
    )
    results: Path | None = flag(
        None,
        "-o --output --output-file",
        "Results; if the file is there, the run goes on with it.",
        environment=False,
        metavar="FILE",
    )
    parallel: int = again(
        Settings,
        "max_num_seqs",
        32,
        help="Most samples that decode together; also the largest `n` of a request.",
    )
    instances: int | None = flag(
        None, "--instances", "Number of engines, each with its own cores and weights; default: 1."
    )
    ray: str | None = flag(
        None,
        "--ray",
        "Run on a Ray cluster: at the address, else at RAY_ADDRESS, else on this "
        "machine. --instances is then the most engines (default: as many as fit).",
        metavar="[ADDRESS]",
        alone=HERE,
    )
    allow_unknown_fields: bool = again(Settings, "allow_unknown_fields")


def run(
    *, flags: BatchFlags, model: ModelFlags, adapters: AdapterFlags, prefixes: PrefixFlags
) -> None:
    """Answer a file of requests. After an interruption, the same command goes on.

    Raises:
        InputError: A file, a flag or the model cannot be used.
    """
    try:
        from suffice.serve import batch
        from suffice.serve.batch_file import Requests, Results
    except ImportError as error:
        raise InputError(f"`suffice batch` needs {error.name}: {_EXTRA}") from None
    if flags.requests is None or flags.results is None:
        raise InputError("give -i FILE, the requests, and -o FILE, the results")
    for name, path in (("-i", flags.requests), ("-o", flags.results)):
        if str(path) == "-":
            raise InputError(f"{name} -: must be a file, since an interrupted run goes on with it")
    model = prefixes.on(adapters.on(model))
    settings = _settings(flags, model)
    answer, setting = _answer(flags, model, settings), _setting(flags, settings)
    requests = Requests(flags.requests)
    began = time.monotonic()
    shown = _shown(len(requests.entries))
    with (
        terminates_as_interrupt(),
        Results(flags.results, requests, setting) as results,
        shown as tell,
    ):
        try:
            counts = batch.run(answer, requests, results, tell)
        except KeyboardInterrupt:
            left = len(results.todo)
            done = len(requests.entries) - left
            print(
                f"interrupted: {done} of {done + left} done; the same command goes on",
                file=sys.stderr,
            )
            raise
    print(summary(counts, time.monotonic() - began), file=sys.stderr)


def _answer(flags: BatchFlags, model: ModelFlags, settings: Settings) -> Any:
    """Return what answers the requests: engines of this machine, or of a cluster."""
    from suffice.serve import batch

    if flags.ray is None:
        return batch.here(settings)
    try:
        from suffice.serve.ray_batch import on_cluster
    except ImportError as error:
        raise InputError(f"`suffice batch --ray` needs {error.name}: {_RAY}") from None
    address = None if flags.ray == HERE else flags.ray
    return on_cluster(settings, address, threads=model.options.threads, most=flags.instances)


def _setting(flags: BatchFlags, settings: Settings) -> Setting:
    """Return what is known of how results are made before an engine is started."""
    from suffice import native
    from suffice.checkpoints.files import fingerprint, locate
    from suffice.engine.options import options
    from suffice.serve.batch_setting import Setting
    from suffice.serve.processes import model as served

    given = {}
    for name, (declared, option) in options().items():
        value = settings.options[name]
        if name == "model" or name in served.SAME_TEXT or option.flag is None:
            continue
        if value not in (declared.default, option.plain):
            given[option.flag.long] = value if isinstance(value, str) else json.dumps(value)
    if flags.ray is not None:  # the model's files and the processors are the cluster's
        return Setting(settings.model, given, settings.allow_unknown_fields)
    stamp = fingerprint(locate(settings.model))
    return Setting(
        settings.model,
        given,
        settings.allow_unknown_fields,
        served.fingerprint(settings.options, stamp),
        native.isa(),
    )


def _settings(flags: BatchFlags, model: ModelFlags) -> Settings:
    from suffice.pull import resolve

    if flags.ray is None:
        model.config()  # refuses bad options
        resolve(model.model)
    else:  # the nodes may have more cores than this machine, and the model, which this may not have
        options = dataclasses.replace(model.options, threads=None)
        dataclasses.replace(model, options=options).config()
    return Settings(
        model=model.model,
        options=engine_options(model, flags.parallel),
        instances=1 if flags.ray is not None or flags.instances is None else flags.instances,
        max_num_seqs=flags.parallel,
        allow_unknown_fields=flags.allow_unknown_fields,
        share_prefixes=True,
        page=False,
        access_log=False,
    )


@contextlib.contextmanager
def _shown(total: int) -> Iterator[Callable[[Counts], None]]:
    """Show how far a run is; a terminal gets a bar, a log a line from time to time."""
    if sys.stderr.isatty():
        with counting_bar() as bar:
            line = bar.add_task("requests", total=total)
            yield lambda counts: bar.update(line, completed=counts.done)
        return
    shown = time.monotonic()

    def tell(counts: Counts) -> None:
        nonlocal shown
        if time.monotonic() - shown >= EVERY:
            shown = time.monotonic()
            print(f"requests: {counts.done} of {total}", file=sys.stderr, flush=True)

    yield tell


def summary(counts: Counts, seconds: float) -> str:
    """Return a run's summary in a line."""
    requests = "1 request" if counts.total == 1 else f"{counts.total} requests"
    parts = [f"{requests}: {counts.answered} answered"]
    if counts.refused:
        parts.append(f"{counts.refused} refused, such as {counts.refusal}")
    if counts.before:
        parts.append(f"{counts.before} done before")
    if counts.tokens:
        parts.append(f"{counts.tokens:,} tokens, {counts.tokens / seconds:,.0f} tok/s")
    parts += prompts_read(counts.prompt_rows_read, counts.prompt_rows_held)
    return ", ".join(parts)
