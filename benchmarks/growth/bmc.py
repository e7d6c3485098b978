"""Reproduce the BMC paper's measurements of the attention block on this machine.

    python -m benchmarks.growth.bmc --list             list the results
    python -m benchmarks.growth.bmc                    everything (about half an hour)
    python -m benchmarks.growth.bmc --only fig7 fig8   some of it
    python -m benchmarks.growth.bmc --missing          results that are not stored yet
    python -m benchmarks.growth.bmc --quick            tiny sizes, to see that it runs

Each result is a table, JSON and a plot in benchmarks/growth/results/. Keys and values are random,
for one layer, in float32. Positions are sampled as block.py describes; the JSON repeats how.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.growth import block
from benchmarks.growth.allocations import Run, sweep, sweeps_of, tell_sweeps
from benchmarks.growth.block import Block, Drafts, Sampling, Variant
from benchmarks.harness import figures, record
from suffice import native
from suffice.cache import Growth, machine
from suffice.cache.bmc import BMC
from suffice.cache.growth import Double, Iterative, Step, Upfront


def fig5(run: Run) -> None:
    note = "The paper (96 cores): T = 16 best, 3.25x over iterative, 1.34x over upfront."
    title = "Attention block against T, OPT-13B, B = 8, N = 1024 (Fig. 5)"
    sweeps_of(run, "fig5", title, [block.OPT_13B], [1024], 8, note)


def fig7(run: Run) -> None:
    shapes = [block.OPT_350M, block.OPT_1B3, block.OPT_2B7, block.OPT_6B7, block.OPT_13B]
    note = "The paper: T = 8 best for every model."
    title = "Attention block against T, B = 8, N = 512 (Fig. 7)"
    sweeps_of(run, "fig7", title, shapes, [512], 8, note)


def fig8(run: Run) -> None:
    note = "The paper: T = 8, 16, 32 best for N = 128, 512, 2048 (its C' = 0.1 gives 4, 8, 16)."
    title = "Attention block against T, OPT-6.7B, B = 8 (Fig. 8)"
    sweeps_of(run, "fig8", title, [block.OPT_6B7], [128, 512, 1024, 2048], 8, note)


def fig9(run: Run) -> None:
    results, marks = {}, {}
    for limit in dict.fromkeys(run.rows(limit) for limit in (1024, 4096)):
        label = block.LLAMA_3_8B.name
        results[label, limit] = sweep(run, block.LLAMA_3_8B, 32, limit)
        # The query heads of a group share one matmul here, so Eq. 8's G cancels (see cost.py)
        marks[f"{label} N={limit}"] = float(run.predicted(limit))
    expanded = ", ".join(str(run.predicted(run.rows(n), group=4)) for n in (1024, 4096))
    note = (
        "The paper: T = 16 and 32 best for N = 1024 and 4096. The four query heads of a group are "
        f"rows of one product here; with Eq. 8's G = 4 the model would say T = {expanded}."
    )
    title = "Attention block against T, Llama-3-8B, B = 32 (Fig. 9)"
    tell_sweeps(run, "fig9", title, results, marks, note)


def table1(run: Run) -> None:
    limit = run.rows(4096)
    drafts = Drafts(rows=26, gained=4)
    times = sweep(run, block.LLAMA_7B, 1, limit, drafts)
    body = Block(block.LLAMA_7B, 1, limit, drafts)
    # Iterative makes room for all 26 drafts in each step and drops the refused ones
    times[2 * max(times)] = body.decode(Iterative(), sampling=run.sampling)
    label = block.LLAMA_7B.name
    gain = _product_gain(body)
    costs = {"drafts": 26.0, "accepted": 4.0}
    marks = {f"{label} N={limit}": float(run.predicted(limit, **costs, product_gain=gain))}
    note = (
        "The paper: T = 8 best. The last line, T past N / m, is iterative: room for all drafts in "
        "every step. Elsewhere drafts are cut to the spare rows while m stays, which flatters "
        f"T > N / k. Measured b'/b = {gain:.3g}; if k rows cost one traversal (b'/b = 26) the "
        f"model says T = {run.predicted(limit, **costs)}."
    )
    title = "Attention block against T, speculative, k = 26, m = 4 (Table I)"
    tell_sweeps(run, "table1", title, {(label, limit): times}, marks, note)


def _product_gain(body: Block) -> float:
    """b'/b of Eq. 9: speed-up per row of the matmul of all drafts over that of one row."""
    keys = body.pool
    seconds = []
    for rows in (1, body.drafts.rows):
        query = body.query[:, :rows]

        def attend(query: torch.Tensor = query) -> None:
            torch.bmm(torch.bmm(query, keys.transpose(1, 2)), keys)

        seconds.append(machine._seconds(attend, torch.get_num_threads()) / rows)
    return seconds[0] / seconds[1]


def schemes(run: Run, limit: int) -> dict[str, tuple[Growth, Variant]]:
    """Return every growth policy with the paper's block, then with our refinements."""
    bmc = BMC(ratio=run.rates.ratio)
    paper: dict[str, Growth] = {
        "iterative": Iterative(),
        "upfront": Upfront(),
        f"bmc (r = {bmc.spare(limit)})": bmc,
        "step (256)": Step(256),
        "double": Double(),
    }
    listed = {label: (growth, block.PAPER) for label, growth in paper.items()}
    for label, growth in paper.items():
        listed[f"{label}, views"] = (growth, Variant(rows="used"))
    for label, growth in paper.items():
        listed[f"{label}, huge pages"] = (growth, Variant(pages="huge"))
    for label, growth in paper.items():
        listed[f"{label}, huge pages, views"] = (growth, Variant("huge", "used"))
    return listed


def growths(run: Run) -> None:
    limit = run.rows(2048)
    body = Block(block.OPT_6B7, run.requests(8), limit)
    block.warm_up(body)
    times = {
        label: body.decode(growth, variant, run.sampling)
        for label, (growth, variant) in run.track("policies", schemes(run, limit).items())
    }
    first = {name: time.total for name, time in times.items()}
    head = ["growth", "allocations", "seconds", "over iterative", "over upfront"]
    rows = [
        [label, each.allocations, each.total, first["iterative"] / each.total,
         first["upfront"] / each.total]
        for label, each in times.items()
    ]  # fmt: skip
    bmc = next(label for label in times if label.startswith("bmc"))
    note = (
        f"BMC over iterative / upfront: {first['iterative'] / first[bmc]:.2f}x / "
        f"{first['upfront'] / first[bmc]:.2f}x (to reach: 2x / 1.3x). 'views': attention on the "
        "rows in use instead of the padded tensor and a mask. 'huge pages': memory mapped with "
        "huge pages advised, zeroed by the kernel."
    )
    title = "Growth policies, OPT-6.7B shape, B = 8, N = 2048"
    run.save("growths", title, head, rows, note)
    groups = {label: {"allocate and copy": each.allocate + each.copy, "attend": each.attend}
              for label, each in times.items() if not label.startswith("iterative")}  # fmt: skip
    figures.bars(run.folder / "growths.png", title + " (without iterative)", "seconds", groups,
                 stacked=True)  # fmt: skip


def table4(run: Run) -> None:
    limit = run.rows(2048)
    body = Block(block.OPT_2B7, run.requests(8), limit)
    block.warm_up(body)
    wanted = {
        label: scheme
        for label, scheme in schemes(run, limit).items()
        if label.split(",")[0] in ("iterative", "upfront") or label.startswith("bmc")
    }
    times = {
        label: body.decode(growth, variant, run.sampling, split=True)
        for label, (growth, variant) in run.track("break-up", wanted.items())
    }
    whole = times["iterative"].total
    head = ["scheme", "allocation", "copy", "SDPA", "total", "seconds"]
    rows = [
        [label, each.allocate / whole, each.copy / whole, each.attend / whole, each.total / whole,
         each.total]
        for label, each in times.items()
    ]  # fmt: skip
    note = (
        "Fractions of iterative's time. Allocation: getting the memory and touching each page; "
        "copy: the rows held, zeroing the rest, giving the old tensors back. "
        "The paper: iterative 0.46 + 0.22 + 0.31, upfront 0.00 + 0 + 0.56, BMC 0.00 + 0.00 + 0.29."
    )
    title = "Break-up of the attention block, OPT-2.7B, B = 8, N = 2048 (Table IV)"
    run.save("table4", title, head, rows, note)
    groups = {label: {"allocation": row[1], "copy": row[2], "SDPA": row[3]}
              for label, row in zip(times, rows, strict=True)}  # fmt: skip
    figures.bars(run.folder / "table4.png", title, "of iterative's time", groups, stacked=True)


def table5(run: Run) -> None:
    limit = run.rows(2048)
    body = Block(block.OPT_6B7, run.requests(8), limit)
    block.warm_up(body)
    policies = {"iterative": Iterative(), "upfront": Upfront(), "bmc": BMC(ratio=run.rates.ratio)}
    rows: list[list[Any]] = []
    cases = [(pages, label) for pages in ("small", "huge") for label in policies]
    for pages, label in run.track("page faults", cases):
        times = body.decode(policies[label], Variant(pages=pages), run.sampling)
        missed = times.tlb_misses if block.tlb_counter() else "not counted here"
        rows.append([pages, label, times.major_faults, times.minor_faults, missed, times.total])
    note = (
        "Faults of the timed parts of one layer's decode. TLB misses are reads of data, by the "
        "processor's counter; many virtual machines have none."
    )
    title = "Page faults, OPT-6.7B, B = 8, N = 2048 (Table V)"
    head = ["pages", "scheme", "major faults", "minor faults", "TLB misses", "seconds"]
    run.save("table5", title, head, rows, note)
    groups: dict[str, dict[str, float]] = {}
    for pages, label, _, minor, *_ in rows:
        groups.setdefault(label, {})[f"{pages} pages"] = minor
    figures.bars(run.folder / "table5.png", title, "minor faults", groups, stacked=False)


def table10(run: Run) -> None:
    lengths = [run.rows(length) for length in (1024, 2048, 4096, 8192, 16384)]
    rows: list[list[Any]] = []
    lines: dict[str, figures.Points] = {}
    cases = [(batch, limit) for batch in (4, 16) for limit in dict.fromkeys(lengths)]
    for batch, limit in run.track("long sequences", cases):
        body = Block(block.LONG, run.requests(batch), limit)
        block.warm_up(body)
        bmc = BMC(ratio=run.rates.ratio)
        times = {
            label: body.decode(growth, sampling=run.sampling).total
            for label, growth in
            {"bmc": bmc, "iterative": Iterative(), "upfront": Upfront(), "step": Step(256),
             "double": Double()}.items()
        }  # fmt: skip
        ratios = [times[other] / times["bmc"] for other in list(times)[1:]]
        rows.append([batch, limit, bmc.allocations(limit), times["bmc"], *ratios])
        lines.setdefault(f"B = {batch}", []).append((float(limit), ratios[0]))
    head = ["B", "N", "T", "bmc seconds"]
    head += [f"bmc over {other}" for other in ("iterative", "upfront", "step 256", "double")]
    note = "The paper, over Hugging Face at N = 16384: 10.6x (B = 4) and 19.7x (B = 16)."
    title = "Long sequences, 32 heads of 16 (Table X)"
    run.save("table10", title, head, rows, note)
    figures.curves(run.folder / "table10.png", title, ("N", "bmc over iterative"), lines)


def fig16(run: Run) -> None:
    limit = run.rows(2048)
    body = Block(block.OPT_2B7, run.requests(32), limit)
    block.warm_up(body)
    bmc = BMC(ratio=run.rates.ratio)
    some = {spot * limit // 64 + limit // 128 for spot in range(64)}
    grown = {window.held for window in block.windows_of(bmc, limit)}
    policies: dict[str, tuple[Growth, Variant, set[int]]] = {
        "iterative": (Iterative(), block.PAPER, some),
        "bmc": (bmc, block.PAPER, some | grown),
        "bmc, huge pages, views": (bmc, Variant("huge", "used"), some | grown),
        "upfront": (Upfront(), block.PAPER, some),
    }
    rows: list[list[Any]] = []
    lines: dict[str, figures.Points] = {}
    for label, (growth, variant, positions) in run.track("latency", policies.items()):
        for held, seconds, grew in body.latencies(growth, sorted(positions), variant):
            rows.append([label, held, 1000 * seconds, "x" if grew else ""])
            lines.setdefault(label, []).append((float(held), 1000 * seconds))
    note = "The paper: from n = 256 to 2048 iterative grows about 6x, BMC less than 2x."
    title = "Latency of the n-th token, OPT-2.7B, B = 32 (Fig. 16)"
    run.save("fig16", title, ["growth", "n", "ms", "grew"], rows, note)
    figures.curves(run.folder / "fig16.png", title, ("rows held", "ms"), lines, logarithmic="y")


QUICK = record.BUILD / "bmc-quick"
FIGURES: dict[str, Callable[[Run], None]] = {
    "growths": growths,
    "fig5": fig5,
    "fig7": fig7,
    "fig8": fig8,
    "fig9": fig9,
    "fig16": fig16,
    "table1": table1,
    "table4": table4,
    "table5": table5,
    "table10": table10,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="FIGURE")
    parser.add_argument("--missing", action="store_true", help="skip results that are stored")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--output", type=Path, help="folder for the results")
    parser.add_argument("--list", action="store_true", help="list the figures and stop")
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--windows", type=int, default=Sampling.windows, help="sampled windows")
    options = parser.parse_args()
    if options.list:
        print("\n".join(FIGURES))
        return
    torch.set_num_threads(options.threads)
    folder = options.output or (QUICK if options.quick else record.results(__file__))
    wanted = [
        name
        for name in options.only or FIGURES
        if not (options.missing and (folder / f"{name}.json").exists())
    ]
    console = Console(stderr=True)
    with Progress(console=console) as progress, torch.inference_mode():
        rates = machine.measure(threads=options.threads)
        console.print(f"C' = {rates.ratio:.3g} with {options.threads} threads")
        sampling = Sampling(windows=min(options.windows, 4) if options.quick else options.windows)
        run = Run(rates, folder, options.quick, sampling, progress)
        for name in wanted:
            FIGURES[name](run)
            console.print(f"{folder.name}/{name}.md")


if __name__ == "__main__":
    main()
