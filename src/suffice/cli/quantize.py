"""`suffice quantize`: quantizes a model on a calibration text, layer by layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any

from suffice.cli.eval.options import CALIBRATION_TEXT, DATA_DIR
from suffice.cli.flags import WHOLE, flag
from suffice.cli.options import SourceFlags
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import counting_bar


@dataclass(frozen=True)
class QuantizeFlags:
    """The method, calibration text, windows and output file of `quantize`."""

    text: Annotated[
        str,
        flag(
            "--text",
            old=("--calibrate",),
            help=CALIBRATION_TEXT,
        ),
    ]
    output: Annotated[
        Path, flag("-o", "--output", help="The file (.safetensors) to write.", environment=False)
    ]
    method: Annotated[
        str, flag("--method", help="How weights are stored: kmeans:bits=4,act_bits=16, kllm, ...")
    ] = "kmeans"
    data_dir: Annotated[str | None, DATA_DIR] = None
    window: Annotated[int, flag("--window", help="Tokens per window of the text.", **WHOLE)] = 1024
    limit: Annotated[int, flag("--limit", help="Maximum number of windows.", **WHOLE)] = 16


def run(*, flags: QuantizeFlags, model: SourceFlags) -> None:
    """Quantize and write the file. After Ctrl-C, the same command continues where it stopped.

    Raises:
        InputError: A method, text, flag or model that cannot be used, or a file that cannot be
            written.
    """
    _check_output(flags.output)
    try:
        import torch
    except ImportError:
        raise InputError(
            "`suffice quantize` needs PyTorch: pip install 'suffice[quantize]'"
        ) from None

    from suffice import native
    from suffice.eval.perplexity import PerplexityPlan, windows_of
    from suffice.eval.texts import described, load_text
    from suffice.models.decoder import DecoderWeights
    from suffice.models.files import fingerprint, locate
    from suffice.models.open import open_checkpoint
    from suffice.models.quantize.job import Quantizing
    from suffice.models.tokenizer import load_tokenizer
    from suffice.quant.hadamard import block_of
    from suffice.quant.none import NoQuant

    if model.options.threads is not None:
        native.set_threads(model.options.threads)
        torch.set_num_threads(model.options.threads)
    method = _method(flags.method)
    plan = PerplexityPlan(flags.window, flags.limit)
    text = load_text(flags.text, flags.data_dir)
    path = locate(model.model)
    _check_apart(flags.output, path)
    with busy(f"loading {model.model}"):
        checkpoint = open_checkpoint(path)
        tokenizer = load_tokenizer(str(model.options.tokenizer or path))
        windows = windows_of(tokenizer, text, plan, checkpoint.config.longest_prompt)
        decoder = DecoderWeights.from_checkpoint(checkpoint, NoQuant("float32"))
    if method.hadamard:  # check before the text is run
        config = checkpoint.config
        for inputs in (config.width, config.heads * config.head_size, config.mlp_width):
            block_of(inputs)
    facts = {
        "model": {"name": PurePath(model.model).name, "hash": fingerprint(path)},
        "method": flags.method,
        "text": described(flags.text, text, windows),
    }
    quantizing = Quantizing(decoder, method, windows, flags.output, facts)
    try:
        if method.fisher:
            _show("windows weighed", len(windows), quantizing.weigh())
        _show("layers", len(decoder.config.layers), quantizing.run())
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with what is left", file=sys.stderr)
        raise
    quantizing.write(tokenizer)
    print(flags.output)


def _check_output(path: Path) -> None:
    if path.suffix != ".safetensors" or path.is_dir() or not path.parent.is_dir():
        raise InputError(f"-o {path}: must be a .safetensors file in a folder that is there")


def _check_apart(output: Path, model: Path) -> None:
    if model.is_dir() and output.parent.resolve() == model.resolve():
        raise InputError(f"-o {output}: would be one of the model's own files; give another folder")


def _method(text: str) -> Any:
    """Return the method of a name.

    Raises:
        InputError: The method is unknown, uses no calibration, or its codes cannot be stored.
    """
    import numpy as np

    from suffice.quant import QUANTS

    method = QUANTS.build(text)
    if not method.calibrates:
        raise InputError(
            f"--method {text}: needs no calibration; run the model with --quant {text}"
        )
    try:  # fail before minutes are spent on the model
        weight = np.linspace(-1, 1, 16 * 64, dtype=np.float32).reshape(16, 64)
        coded = method.quantize(weight, np.eye(64, dtype=np.float32))
        method.packed(coded, None, method.site(weight))
    except InputError as error:
        raise InputError(f"--method {text}: {error}") from None
    return method


def _show(what: str, total: int, done: Iterator[int]) -> None:
    from suffice.models.pages import trim_heap

    with counting_bar() as bar:
        task = bar.add_task(what, total=total)
        for _ in done:
            trim_heap()
            bar.update(task, advance=1)
