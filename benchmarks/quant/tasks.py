"""The loss of right answers with few bits: weights, keys and values in codes, zero-shot.

    python -m benchmarks.quant.tasks --data-dir DIR --cache FOLDER     SmolLM2, minutes a setting
    ... --settings none "int8 + int8" "kmeans:hadamard=false + kmeans4"
    ... --task arc_easy,boolq                                          instead of PIQA
    ... --mode prefill                                                 texts as prompts
    ... --device cuda --settings none kllm                             in PyTorch on a GPU
    ... --limit 8 --out build                                          a short trial

A setting is weights and, after ` + `, the type of keys and values, by default the model's. Weights
that need a calibration are those that quality.py stores in --cache; others are quantized as they
are loaded. Decode steps compute the answers, as for a user; with --mode prefill, context and answer
are one prompt, which is faster, into results of their own. Questions are those in DIR, in the form
of lm-evaluation-harness; each task has its own result. Cells are stored as they are done.

Without --device the engine answers. With it (cpu or cuda) PyTorch does: context and answer as one
prompt, many texts at a time, keys and values in float32, into results of their own. A setting is
then weights alone, and those that need a calibration must be in --cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from benchmarks.harness import record, script, torch_device, torch_texts
from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.harness.torch_texts import TextsDecoder
from benchmarks.quant.cells import FLOAT, kept_path
from suffice import LLM
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.files import fingerprint, locate
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.eval.likelihood import LikelihoodPlan, context_length
from suffice.eval.modes import MODES
from suffice.eval.tasks import Question, Task, chosen, encoded, measure
from suffice.progress import counting_bar
from suffice.quant import QUANTS
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes
from suffice.quant.rtn import RTN
from suffice.text.tokenizer import load_tokenizer

NAME, PIQA, TORCH, PREFILL = "tasks", "piqa", "torch", "prefill"
_KINDS = ("acc", "acc_norm")
SETTINGS = (
    "none",
    "none + int8",
    "none + kmeans4",
    "int8",
    "rtn:group=64",
    "kllm:act_bits=16",
    "kllm",
    "kllm:act_bits=3",
    "kmeans:hadamard=false",
    "kmeans:hadamard=false + kmeans4",
)


def engine(flags: argparse.Namespace, setting: str) -> LLM:
    """Return an engine with a setting's weights, keys and values.

    Raises:
        InputError: A setting that is not available.
    """
    weights, _, kv = setting.partition(" + ")
    options: dict[str, Any] = {"kv_cache_dtype": kv or "auto", "threads": flags.threads}
    kept = kept_path(flags.cache, PurePath(flags.model).name, weights)
    if kept.exists():
        return LLM(kept, **options)
    return LLM(flags.model, quantization=weights, **options)


def answered(llm: LLM, task: Task, questions: list[Question], mode: str, name: str) -> Cell:
    """Return the shares of right answers, by decode steps or prompts."""
    pairs = encoded(llm.tokenizer, questions, context_length(llm))
    with counting_bar() as bar:
        tallies = measure(llm.runner, task, questions, pairs, LikelihoodPlan(mode, 8))
        *_, tally = bar.track(tallies, total=len(questions), description=name)
    return dataclasses.asdict(tally.result())


Answer = Callable[[Task, list[Question]], Cell]


def by_engine(flags: argparse.Namespace) -> Callable[[str], Answer]:
    """Return what loads an engine for a setting, and returns what answers."""

    def run(setting: str) -> Answer:
        llm = engine(flags, setting)
        return lambda task, questions: answered(llm, task, questions, flags.mode, setting)

    return run


def in_torch(flags: argparse.Namespace) -> Callable[[str], Answer]:
    """Return what loads a setting's weights for a device, and returns what answers.

    Raises:
        InputError: A device, a setting or a model that cannot be used.
    """
    for setting in flags.settings:
        if " + " in setting:
            raise InputError(
                f"{setting}: with --device, keys and values are float32: give weights alone"
            )
        QUANTS.build(setting)
    device, path = torch_device.chosen(flags.device), locate(flags.model)
    torch_device.use_threads(flags.threads)
    checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
    model = {"name": PurePath(flags.model).name, "hash": fingerprint(path)}

    def run(setting: str) -> Answer:
        decoder = weights(flags, checkpoint, setting, {"model": model})
        decoder.device = device

        def answer(task: Task, questions: list[Question]) -> Cell:
            tally = torch_texts.answered(decoder, tokenizer, task, questions, setting)
            return dataclasses.asdict(tally.result()) | torch_device.of_cell(device)

        return answer

    return run


def weights(
    flags: argparse.Namespace, checkpoint: Checkpoint, setting: str, facts: dict[str, Any]
) -> TextsDecoder:
    """Return a model with a setting's weights: those of `quality`, which must be of `facts`, or
    those of a method that needs no text.

    Raises:
        InputError: They are of other facts, they must be made by `quality`, or PyTorch would leave
            their inputs exact.
    """
    kept = kept_path(flags.cache, PurePath(flags.model).name, setting)
    if kept.exists():
        decoder = stored(kept, facts | {"method": setting})
    else:
        decoder = loaded(checkpoint, setting, kept)
    codes = (each for each in decoder.all_packed if isinstance(each, PackedCodes))
    if any(each.most != INPUT_LEVELS[16] for each in codes):
        raise InputError(f"{setting}: inputs of 8 bits are not rounded with --device: leave it out")
    return decoder


def stored(path: Path, facts: dict[str, Any]) -> TextsDecoder:
    """Return the model in a file of `quality`.

    Raises:
        InputError: The file is of another model or method.
    """
    opened = open_quantized(path)
    found = {name: opened.facts.get(name) for name in facts}
    if found != facts:
        raise InputError(f"{path} is of {found}, not of {facts}: remove it")
    return TextsDecoder(opened.config, opened.weights)


def loaded(checkpoint: Checkpoint, setting: str, kept: Path) -> TextsDecoder:
    """Return a model with weights by a method that needs no text.

    Raises:
        InputError: It needs one, or cannot store the weights.
    """
    method = NoQuant("float32") if setting == FLOAT else QUANTS.build(setting)
    plain = isinstance(method, RTN) and not method.compensate
    if method.calibrates and not plain:
        raise InputError(f"{setting}: {kept} does not exist: run quality.py with --cache first")
    return TextsDecoder.from_checkpoint(checkpoint, method)


def table(store: CellStore) -> str:
    """Return the results as a table."""
    text, torch_ran = f"## Right answers: {store.config['model']}", store.config.get("by") == TORCH
    prompts = torch_ran or store.config.get("mode") == PREFILL
    about = (
        f"{store.config['model']}, {store.config['task']}, zero-shot, "
        f"{store.config['questions']} questions, "
        f"{'context and answer as one prompt' if prompts else 'by decode steps'}, with standard "
        "errors. Weights are those of `quality`"
    )
    if torch_ran:
        about += f".{torch_texts.ABOUT}{torch_device.sentence(store.cells)}"
    else:
        about += "; keys and values are the model's where none are named."
    rows = [
        [task, f"`{setting}`", *(_shown(cell, each) for each in _KINDS)]
        for task, cells in store.cells.items()
        for setting, cell in cells.items()
    ]
    return "\n\n".join([text, about, markdown(["task", "setting", *_KINDS], rows)])


def _shown(cell: Cell, kind: str) -> str:
    """Return a share with its error; some tasks have no normalised one."""
    return "" if cell[kind] is None else f"{cell[kind]:.3f} ± {cell[f'{kind}_stderr']:.3f}"


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--cache", type=Path, default=Path("build/quantized"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default=PIQA, help="one, or several with commas")
    parser.add_argument("--limit", type=int, help="questions; default: all")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="of the engine")
    parser.add_argument("--threads", type=int)
    torch_device.add_option(parser, None)
    parser.add_argument("--out", type=Path, default=record.results(__file__))
    flags = parser.parse_args()
    if flags.limit is not None and flags.limit < 2:
        raise InputError(f"--limit={flags.limit}: must be at least 2 questions")
    if flags.mode == PREFILL and flags.device is not None:
        raise InputError("--mode=prefill: --device runs prompts alone; leave one of them out")
    return flags


def opened(flags: argparse.Namespace, task: Task, count: int) -> CellStore:
    """Return a task's results so far, of `count` questions.

    Raises:
        InputError: They are of other questions.
    """
    model = PurePath(flags.model).name
    shown = {"model": model, "task": task.name, "questions": count}
    parts = [NAME, model] + [task.name] * (task.name != PIQA)
    if flags.device is not None:
        shown["by"] = TORCH
        parts.insert(1, TORCH)
    elif flags.mode == PREFILL:
        shown["mode"] = PREFILL
        parts.insert(1, PREFILL)
    store = CellStore(flags.out, "_".join(parts), shown, record.facts(), table)
    store.read()
    return store


def measured(flags: argparse.Namespace) -> list[CellStore]:
    """Measure the settings without a result; return all results of each task.

    Raises:
        InputError: Questions or settings that are not available.
    """
    tasks = {task.name: task for task in chosen(flags.task)}
    questions = {name: task.load(flags.data_dir, flags.limit) for name, task in tasks.items()}
    run = by_engine(flags) if flags.device is None else in_torch(flags)
    stores = {name: opened(flags, task, len(questions[name])) for name, task in tasks.items()}
    for setting in flags.settings:
        missing = [name for name in tasks if setting not in stores[name].cells.get(name, {})]
        answer = run(setting) if missing else None
        for name in missing:
            assert answer is not None
            stores[name].keep(name, setting, answer(tasks[name], questions[name]))
    for store in stores.values():
        store.write()
    return list(stores.values())


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: "\n\n".join(map(table, measured(options()))))


if __name__ == "__main__":
    sys.exit(main())
