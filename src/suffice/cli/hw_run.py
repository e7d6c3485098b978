"""`suffice hw run` and `compare`: a workload on an accelerator, and runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from suffice.cli.options import NUMBER, WHOLE, flag
from suffice.cli.output import markdown
from suffice.errors import InputError, unknown
from suffice.progress import progress_bar

ACCELERATORS = ("scrooge",)
COLUMNS = {  # of a summary: what is printed, and how
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
}


@dataclass(frozen=True)
class RunFlags:
    """What `hw run` simulates, and where it writes."""

    output: Annotated[
        Path, flag("-o", "--output", help="The folder to write to.", environment=False)
    ]
    config: Annotated[
        str, flag("--config", help="The design: a name, or a TOML file.", environment=False)
    ] = "scrooge"
    model: Annotated[
        str | None, flag("--shape", help="One of the paper's models; default: llama-2-7b.")
    ] = None
    workload: Annotated[
        str | None, flag("--workload", help="Made-up logits: s, as, or a TOML file; default: s.")
    ] = None
    trace: Annotated[
        Path | None,
        flag("--trace", help="Logits of a model (.npz) in their place.", environment=False),
    ] = None
    key_share: Annotated[
        float | None,
        flag("--key-share", help="thr_k; default: the workload's, or 0.9.", **NUMBER),
    ] = None
    value_share: Annotated[
        float | None,
        flag("--value-share", help="thr_v; default: the workload's, or 0.001.", **NUMBER),
    ] = None
    tokens: Annotated[
        int | None, flag("--tokens", help="Decode steps; default: 1024, or the trace's.", **WHOLE)
    ] = None
    heads: Annotated[
        int, flag("--sampled-heads", help="Key/value heads of a layer looked at.", **WHOLE)
    ] = 1
    lengths: Annotated[
        int, flag("--sampled-lengths", help="Lengths whose cycles are simulated.", **WHOLE)
    ] = 16


def run(accelerator: str, flags: RunFlags) -> None:
    """Simulate a workload, write its files, print its summary.

    Raises:
        InputError: Anything that cannot be; nothing is written then.
    """
    if accelerator not in ACCELERATORS:
        raise unknown("accelerator", accelerator, ACCELERATORS)
    from suffice.hw.scrooge import simulate
    from suffice.hw.scrooge.design import Design, model
    from suffice.hw.scrooge.logits import Source, Synthetic, Trace
    from suffice.hw.scrooge.report import Run

    if flags.output.exists() and not flags.output.is_dir():
        raise InputError(f"-o {flags.output}: is a file: give a folder")
    design = Design.load(flags.config)
    source: Source
    if flags.trace is not None:
        if flags.model is not None or flags.workload is not None:
            raise InputError("--trace says which model and which logits: leave the other flags out")
        source = trace = Trace.load(flags.trace)
        shape, name, longest, shares = trace.shape, flags.trace.name, trace.tokens, (0.9, 0.001)
    else:
        name, longest = flags.workload or "s", 1024
        source = made = Synthetic.load(name)
        shape, shares = model(flags.model or "llama-2-7b"), (made.key_share, made.value_share)
    key_share = shares[0] if flags.key_share is None else flags.key_share
    value_share = shares[1] if flags.value_share is None else flags.value_share
    tokens = longest if flags.tokens is None else flags.tokens
    sizes = {"tokens": tokens, "sampled_heads": flags.heads, "sampled_lengths": flags.lengths}
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=None)
        result = simulate.run(
            design,
            shape,
            source,
            (key_share, value_share),
            **sizes,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    done = Run(design, shape, Path(name).name, (key_share, value_share), result=result, **sizes)
    done.write(flags.output)
    summary = done.summary()
    print(
        markdown(["", accelerator], [[k, form.format(summary[k])] for k, form in COLUMNS.items()])
    )


def compare(folders: list[Path]) -> None:
    """Print the summaries of runs, a column each.

    Raises:
        InputError: A folder that no run has written.
    """
    from suffice.hw.scrooge.report import read_summary

    summaries = [read_summary(folder) for folder in folders]
    rows = [[k, *(form.format(each[k]) for each in summaries)] for k, form in COLUMNS.items()]
    print(markdown(["", *(folder.name for folder in folders)], rows))
