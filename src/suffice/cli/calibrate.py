"""`suffice calibrate`: runs a model over a text and writes what techniques must know of it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import progress_bar

if TYPE_CHECKING:
    from suffice.cli.eval_options import CalibrateFlags
    from suffice.cli.options import ModelFlags
    from suffice.engine.llm import LLM


def run(flags: CalibrateFlags, model: ModelFlags) -> None:
    """Calibrate and write the file; Ctrl-C leaves what was there.

    Raises:
        InputError: A text, flag or model that cannot be used, or a file that cannot be written.
    """
    if not flags.output.parent.is_dir():
        raise InputError(f"-o {flags.output}: there is no folder {flags.output.parent}")
    from suffice.attention.calibration import write
    from suffice.eval.perplexity import Plan, windows_of
    from suffice.eval.record import facts
    from suffice.eval.texts import load_text
    from suffice.models.fingerprint import fingerprint
    from suffice.models.locate import locate

    plan = Plan(flags.window, flags.limit)
    text = load_text(flags.text, flags.data_dir)
    with busy(f"loading {model.model}"):
        llm = model.exact().load(seed=0)
    windows = windows_of(llm.tokenizer, text, plan, llm.config.max_model_len or 0)
    decoder = llm.runner.decoder.config  # type: ignore[attr-defined]
    stored = {
        "schema": 0,
        "model": {
            "name": PurePath(model.model).name,
            "hash": fingerprint(locate(model.model)),
            "heads": decoder.heads,
        },
        "text": {
            "name": PurePath(flags.text).name,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "windows": len(windows),
            "window": flags.window,
        },
        "made": facts("suffice", sys.argv[1:]),
        "softmax": _softmax(llm, windows),
    }
    write(flags.output, stored)
    print(flags.output)


def _softmax(llm: LLM, windows: list[list[int]]) -> dict[str, object]:
    from rich.progress import BarColumn, TimeRemainingColumn

    from suffice.eval.calibrate import Calibrator

    calibrator = Calibrator(llm.runner)  # type: ignore[arg-type]
    layers = len(llm.runner.decoder.config.layers)  # type: ignore[attr-defined]
    fits: list[tuple[dict[str, Any], dict[str, Any]]] = []
    columns = ("{task.description}", BarColumn(), "{task.completed}/{task.total}")
    with progress_bar(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("windows", total=len(windows))
        for done in calibrator.run(windows):
            bar.update(task, completed=done)
        task = bar.add_task("levels", total=layers)
        for fit in calibrator.fit():
            fits.append(fit)
            bar.advance(task)
    return calibrator.softmax(fits)
