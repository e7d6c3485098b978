"""`suffice hw run` and `compare`: simulates a workload, and prints runs side by side."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cli.flags import REQUIRED, flag
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

    output: str = flag(REQUIRED, "-o --output", "Folder to write to.", environment=False)
    config: str | None = flag(
        None, "--config", "Design: a name, or a TOML file.", environment=False
    )
    model: str | None = flag(None, "--shape", "One of the paper's models; default: llama-2-7b.")
    workload: str | None = flag(
        None, "--workload", "Synthetic logits: s, as, or a TOML file; default: s."
    )
    trace: Path | None = flag(
        None,
        "--trace",
        "Logits of a model, from `hw trace` (.npz), instead of synthetic ones.",
        environment=False,
    )
    key_share: float | None = flag(
        None,
        "--key-share",
        "Mass at which reading of keys ends (thr_k); default: the workload's, or 0.9.",
    )
    value_share: float | None = flag(
        None,
        "--value-share",
        "Share of the largest weight below which values are skipped (thr_v); default: the "
        "workload's, or 0.001.",
    )
    tokens: int | None = flag(None, "--tokens", "Decode steps; default: as in the paper or trace.")
    heads: int | None = flag(
        None, "--sampled-heads", "Key/value heads simulated per layer; default: 1."
    )
    lengths: int | None = flag(
        None, "--sampled-lengths", "Lengths whose cycles are simulated; default: 16."
    )
    loss: float | None = flag(
        None,
        "--perplexity-loss",
        "Rise of perplexity in percent, from `eval perplexity`; drawn in Fig. 9.",
    )
    batch: int | None = flag(None, "--batch", "Sequences per step (kllm); default: 1.")


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
