"""The tables of quality.py: every cell, outliers as in Table IV, the steps of Fig. 11."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import torch_device
from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.quant.cells import parsed
from benchmarks.quant.rivals import is_rivals
from suffice.quant.sites import GROUPS, LINEAR

SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
# KLLM, Table II, LLaMA-2-7B: perplexity in windows of 2048, 5.47 unquantized.
FLOAT = 5.47
PUBLISHED = {
    "none": "5.47",
    "rtn:group=64,compensate=true": "GPTQ 5.84",
    "rtn uncalibrated + a=4,even=true": "RTN 2e3",
    "kllm:act_bits=16 + a=4,outliers=0.01": "KLLM 5.90",
    "kllm:act_bits=16 + a=4,outliers=0.01,offline=true": "KLLM-S 6.00",
    "rtn uncalibrated + a=3,even=true": "RTN 6e5",
    "kllm:act_bits=16 + a=3,outliers=0.01": "KLLM 7.49",
    "kllm:act_bits=16 + a=3,outliers=0.01,offline=true": "KLLM-S 7.91",
    "squeezellm": "SqueezeLLM 5.62",
    "smoothquant + a=4": "SmoothQuant 7e2",
    "quarot + a=4": "QuaRot 6.19",
    "atom + a=4": "Atom 6.12",
    "smoothquant + a=3": "SmoothQuant 8e3",
    "quarot + a=3": "QuaRot 2e2",
    "atom + a=3": "Atom 11.40",
}
OTHERS = (
    "SqueezeLLM W4A16 5.62; W4A4 SmoothQuant 7e2, QuaRot 6.19, Atom 6.12; "
    "W4A3 SmoothQuant 8e3, QuaRot 2e2, Atom 11.40"
)
# KLLM, Table IV, LLaMA-2-7B: perplexity by the share of outliers from 0.5 to 10 %.
TABLE_IV = {
    (4, True): (6.62, 6.00, 5.95, 5.80, 5.69),
    (4, False): (6.11, 5.90, 5.87, 5.66, 5.58),
    (3, True): (11.14, 7.91, 7.11, 6.40, 6.12),
    (3, False): (9.66, 7.49, 6.62, 6.22, 5.98),
}
# KLLM, Fig. 11, from plain rounding to the full method at W4A3, LLaMA-2-7B.
STEPS = (
    ("rounded to even levels", "rtn uncalibrated + a=3,even=true", "> 6e5"),
    (
        "K-means, outliers by thresholds",
        "kllm:act_bits=16 uncalibrated + a=3,outliers=0.01,offline=true",
        "8.03",
    ),
    (
        "weight codebooks weighted by Fisher information",
        "kllm:act_bits=16 + a=3,outliers=0.01,offline=true",
        "7.91",
    ),
    ("outliers found online", "kllm:act_bits=16 + a=3,outliers=0.01", "7.49"),
)
# The paper's third step, once it is measured.
WHOLE_STEP = (
    "codebooks of activations, too",
    "kllm:act_bits=16 + a=3,outliers=0.01,offline=true,fisher=true",
    "7.91",
)
DEVIATION = (
    "The paper's third step also weights the codebooks of activations by Fisher information; here "
    "these are plain K-means in every row."
)
ROUNDED = (
    "The file of SmolLM2 has its weights in Q4_1, groups of 32 with a minimum: they are on a grid "
    "of 4 bits before anything is done to them, which favours small unrotated groups."
)
ROTATED = (
    "SmolLM2 whose hidden states and values are turned by random matrices, and its weights with "
    "them: it computes the same, and no weight is on the grid of its file (`rotated_model.py`)."
)


def table(store: CellStore) -> str:
    """Return the results as text and tables."""
    cells = {setting: cell for row in store.cells.values() for setting, cell in row.items()}
    model, evaluated = store.config["model"]["name"], store.config["evaluated"]
    about = (
        f"{model}, WikiText-2, {evaluated['windows']} windows of {evaluated['window']} tokens, "
        f"evenly spread; calibrated on {store.config['calibrated']['name']}, "
        f"{store.config['calibrated']['windows']} windows of "
        f"{store.config['calibrated']['window']}. Bits are those of the layers' matrices; the "
        "embedding and the head are int8 but for `none` and HQQ's, and llama.cpp's its own. KL is "
        "from the unquantized model, in nats. Published: KLLM, Table II, LLaMA-2-7B, "
        f"{FLOAT} unquantized; also {OTHERS}.{torch_device.sentence(store.cells)}"
    )
    text = [f"## Bits and quality: {model}", about]
    if model.startswith("smollm2"):
        text.append(ROTATED if model.endswith("-rotated") else ROUNDED)
    text.append(_whole(cells))
    text += [part for part in (_outliers(cells), _steps(cells), _sites(cells)) if part]
    text += [f"Refused: `{weights}`: {why}" for weights, why in store.refused.items()]
    return "\n\n".join(text)


def _whole(cells: dict[str, Cell]) -> str:
    head = [
        "weights",
        "bits",
        "inputs",
        "perplexity",
        "ratio",
        "KL mean",
        "same token",
        "published",
    ]
    rows: list[list[Any]] = []
    for setting, cell in cells.items():
        weights, _, inputs = setting.partition(" + ")
        rows.append(
            [
                f"`{weights}`",
                cell["bits"],
                f"`{inputs or 'a=16'}`",
                f"{cell['perplexity']:.2f} ± {cell['error']:.2f}",
                _ratio(cell),
                cell["divergence"],
                cell["agreement"],
                PUBLISHED.get(setting, ""),
            ]
        )
    return markdown(head, rows)


def _ratio(cell: Cell) -> str:
    error = cell["ratio_error"]
    return f"{cell['ratio']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _outliers(cells: dict[str, Cell]) -> str | None:
    """Return the table of outliers: perplexity over that of the unquantized model."""
    found: dict[tuple[str, int, bool, int], dict[float, float]] = {}
    for setting, cell in cells.items():
        weights, inputs = parsed(setting)
        elsewhere = inputs.chosen != GROUPS[LINEAR] or weights.endswith("uncalibrated")
        elsewhere |= inputs.fisher or is_rivals(weights)
        if inputs.learned and not elsewhere:
            key = (weights, inputs.a, inputs.offline, inputs.group or 0)
            found.setdefault(key, {})[inputs.outliers] = cell["ratio"]
    if not found:
        return None
    rows: list[list[Any]] = []
    for key in sorted(found):
        rows.append([f"`{key[0]}`", *_named(*key[1:])])
        rows[-1] += [f"{found[key][share]:.3f}" if share in found[key] else "" for share in SHARES]
    for (a, offline), published in TABLE_IV.items():
        rows.append(["published, LLaMA-2-7B", *_named(a, offline), ""])
        rows[-1] += [f"{value / FLOAT:.3f}" for value in published]
    head = ["weights", "inputs", "outliers by", *(f"{100 * share:g} %" for share in SHARES)]
    return "Perplexity over the unquantized model's by the share of outliers, Table IV:\n\n" + (
        markdown(head, rows)
    )


def _named(a: int, offline: bool, group: int = 0) -> list[str]:
    shared = f", a scale for {group}" if group else ""
    return [f"{a} bits{shared}", "thresholds" if offline else "selection"]


def _sites(cells: dict[str, Cell]) -> str | None:
    """Return the table of the cost of each site, for the settings that name sites."""
    alike: dict[tuple[str, str], dict[str, Cell]] = {}  # settings without their sites
    for setting, cell in cells.items():
        weights, _, inputs = setting.partition(" + ")
        others = [option for option in inputs.split(",") if not option.startswith("sites=")]
        alike.setdefault((weights, ",".join(others)), {})[parsed(setting)[1].sites] = cell
    rows = [
        [f"`{sites}`", f"`{weights}`", f"`{rounded}`", _ratio(cell), cell["divergence"]]
        for (weights, rounded), found in alike.items()
        if found.keys() != {LINEAR}
        for sites, cell in found.items()
    ]
    if not rows:
        return None
    return "Perplexity over the unquantized model's by the sites that are rounded:\n\n" + (
        markdown(["sites", "weights", "rounded to", "ratio", "KL mean"], rows)
    )


def _steps(cells: dict[str, Cell]) -> str | None:
    """Return the table of each part of KLLM at W4A3, if all of them were measured."""
    if any(setting not in cells for _, setting, _ in STEPS):
        return None
    found = list(STEPS)
    whole = WHOLE_STEP[1] in cells
    if whole:
        found[2:3] = [(*found[2][:2], ""), WHOLE_STEP]
    rows = [[what, cells[setting]["perplexity"], theirs] for what, setting, theirs in found]
    steps = markdown(["step", "perplexity", "published, LLaMA-2-7B"], rows)
    about = f"From rounding to KLLM at W4A3, 1 % outliers, Fig. 11:\n\n{steps}"
    return about if whole else f"{about}\n\n{DEVIATION}"
