"""`suffice hw run` and `compare`: simulates a workload, and prints runs side by side."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from suffice.cli.flags import NUMBER, WHOLE, flag
from suffice.cli.output import markdown
from suffice.errors import InputError, unknown
from suffice.progress import progress_bar

if TYPE_CHECKING:
    from suffice_hw.kllm import report as kllm
    from suffice_hw.scrooge import report as scrooge

ACCELERATORS = ("scrooge", "kllm")
OWN = {  # flags of one accelerator only
    "scrooge": ("workload", "trace", "key_share", "value_share", "heads", "lengths", "loss"),
    "kllm": ("batch",),
}
LONG = {"heads": "sampled-heads", "lengths": "sampled-lengths", "loss": "perplexity-loss"}
COLUMNS = {  # of a summary: the printed fields and their formats
    "model": "{}",
    "workload": "{}",
    "key_share": "{:g}",
    "value_share": "{:g}",
    "key_reduction": "{:.2f}",
    "value_reduction": "{:.2f}",
    "reduction": "{:.2f}",
    "reduction_with_waste": "{:.2f}",
    "speedup": "{:.2f}",
    "overlapped_speedup": "{:.2f}",
    "least_speedup": "{:.2f}",
    "scrooge_joules": "{:.3g}",
    "baseline_joules": "{:.3g}",
    "precision": "{}",
    "tokens": "{}",
    "batch": "{}",
    "ms_per_step": "{:.3f}",
    "tokens_per_second": "{:.1f}",
    "joules_per_token": "{:.3g}",
    "outliers_share": "{:.3f}",
    "attention_share": "{:.3f}",
    "hbm_energy_share": "{:.3f}",
}


@dataclass(frozen=True)
class RunFlags:
    """Design, workload and output folder of `hw run`."""

    output: Annotated[str, flag("-o", "--output", help="Folder to write to.", environment=False)]
    config: Annotated[
        str | None, flag("--config", help="Design: a name, or a TOML file.", environment=False)
    ] = None
    model: Annotated[
        str | None, flag("--shape", help="One of the paper's models; default: llama-2-7b.")
    ] = None
    workload: Annotated[
        str | None, flag("--workload", help="Synthetic logits: s, as, or a TOML file; default: s.")
    ] = None
    trace: Annotated[
        Path | None,
        flag(
            "--trace",
            help="Logits of a model, from `hw trace` (.npz), instead of synthetic ones.",
            environment=False,
        ),
    ] = None
    key_share: Annotated[
        float | None,
        flag(
            "--key-share",
            help="Mass at which reading of keys ends (thr_k); default: the workload's, or 0.9.",
            **NUMBER,
        ),
    ] = None
    value_share: Annotated[
        float | None,
        flag(
            "--value-share",
            help="Share of the largest weight below which values are skipped (thr_v); default: the "
            "workload's, or 0.001.",
            **NUMBER,
        ),
    ] = None
    tokens: Annotated[
        int | None,
        flag("--tokens", help="Decode steps; default: as in the paper or trace.", **WHOLE),
    ] = None
    heads: Annotated[
        int | None,
        flag("--sampled-heads", help="Key/value heads simulated per layer; default: 1.", **WHOLE),
    ] = None
    lengths: Annotated[
        int | None,
        flag("--sampled-lengths", help="Lengths whose cycles are simulated; default: 16.", **WHOLE),
    ] = None
    loss: Annotated[
        float | None,
        flag(
            "--perplexity-loss",
            help="Rise of perplexity in percent, from `eval perplexity`; drawn in Fig. 9.",
            **NUMBER,
        ),
    ] = None
    batch: Annotated[
        int | None, flag("--batch", help="Sequences per step (kllm); default: 1.", **WHOLE)
    ] = None


def run(accelerator: str, flags: RunFlags) -> None:
    """Simulate a workload, write its files, print its summary.

    Raises:
        InputError: A flag, design, workload or folder is invalid; nothing is written then.
    """
    if accelerator not in ACCELERATORS:
        raise unknown("accelerator", accelerator, ACCELERATORS)
    from suffice_hw.kllm import report as of_kllm
    from suffice_hw.runs import check_folder
    from suffice_hw.scrooge import report as of_scrooge

    for other, names in OWN.items():
        for name in names:
            if other != accelerator and getattr(flags, name) is not None:
                given = LONG.get(name, name)
                raise InputError(
                    f"--{given.replace('_', '-')}: is a flag of {other}, not of {accelerator}"
                )
    if flags.loss is not None and not 0 <= flags.loss < math.inf:
        raise InputError(f"--perplexity-loss {flags.loss:g}: must be a number of at least 0")
    if not flags.output:
        raise InputError("-o '': must name a folder")
    folder = Path(flags.output)
    check_folder(folder, of_kllm.SCHEMA if accelerator == "kllm" else of_scrooge.SCHEMA)
    done = _kllm(flags) if accelerator == "kllm" else _scrooge(flags)
    done.write(folder)
    print(_table([accelerator], [done.summary()]))


def _kllm(flags: RunFlags) -> kllm.Run:
    from suffice_hw.kllm.design import Design, model
    from suffice_hw.kllm.report import Run

    shape = model(flags.model or "llama-2-7b")
    tokens = 2048 if flags.tokens is None else flags.tokens
    batch = 1 if flags.batch is None else flags.batch
    return Run(Design.load(flags.config or "kllm"), shape, tokens, batch)


def _scrooge(flags: RunFlags) -> scrooge.Run:
    from suffice_hw.runs import file_sha256
    from suffice_hw.scrooge import simulate
    from suffice_hw.scrooge.design import Design, model
    from suffice_hw.scrooge.logits import Source, Synthetic, Trace
    from suffice_hw.scrooge.report import Run

    design = Design.load(flags.config or "scrooge")
    source: Source
    if flags.trace is not None:
        if flags.model is not None or flags.workload is not None:
            raise InputError("--trace sets model and logits: leave out --shape and --workload")
        source = trace = Trace.load(flags.trace)
        identity: dict[str, Any] = {"trace_sha256": file_sha256(flags.trace)}
        shape, name, longest, shares = trace.shape, flags.trace.name, trace.tokens, (0.9, 0.001)
    else:
        name, longest = flags.workload or "s", 1024
        source = made = Synthetic.load(name)
        identity = dataclasses.asdict(made)
        shape, shares = model(flags.model or "llama-2-7b"), (made.key_share, made.value_share)
    thresholds = (
        shares[0] if flags.key_share is None else flags.key_share,
        shares[1] if flags.value_share is None else flags.value_share,
    )
    sizes = {
        "tokens": longest if flags.tokens is None else flags.tokens,
        "sampled_heads": 1 if flags.heads is None else flags.heads,
        "sampled_lengths": 16 if flags.lengths is None else flags.lengths,
    }
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=None)
        result = simulate.run(
            design,
            shape,
            source,
            thresholds,
            **sizes,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    return Run(
        design,
        shape,
        Path(name).name,
        identity,
        thresholds,
        result=result,
        perplexity_loss_percent=flags.loss,
        **sizes,
    )


def _table(names: list[str], summaries: list[dict[str, Any]]) -> str:
    rows = [
        [name, *(form.format(each[name]) if name in each else "" for each in summaries)]
        for name, form in COLUMNS.items()
        if any(name in each for each in summaries)
    ]
    return markdown(["", *names], rows)


def compare(folders: list[Path]) -> None:
    """Print the summaries of runs, one column each.

    Raises:
        InputError: A folder holds no run, or is given twice.
    """
    from suffice_hw.kllm import report as of_kllm
    from suffice_hw.runs import labels, read_summary
    from suffice_hw.scrooge import report as of_scrooge

    names = labels(folders)
    schemas = {each.SCHEMA: each.FIELDS for each in (of_scrooge, of_kllm)}
    summaries = [read_summary(folder, schemas) for folder in folders]
    print(_table(names, summaries))
