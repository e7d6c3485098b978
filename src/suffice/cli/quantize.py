"""`suffice quantize`: quantizes a model on a calibration text, layer by layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from suffice.cli.eval.options import CALIBRATION_TEXT, DATA_DIR
from suffice.cli.flags import REQUIRED, flag
from suffice.cli.options import SourceFlags
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import counted

if TYPE_CHECKING:
    from suffice.eval.perplexity import PerplexityPlan


MOST_LISTED = 12  # experts of a layer, and layers, that a line names


@dataclass(frozen=True)
class QuantizeFlags:
    """The method, calibration text, windows and output file of `quantize`."""

    text: str = flag(REQUIRED, "--text", CALIBRATION_TEXT)
    output: Path = flag(
        REQUIRED, "-o --output", "The file (.safetensors) to write.", environment=False
    )
    quick: bool = flag(
        False,
        "--quick",
        "A few times faster, and nearly as good: --method 4bit --window 512 --limit 4, "
        "where these are not given.",
    )
    method: str | None = flag(
        None,
        "--method",
        "How weights are stored: kmeans:bits=4,act_bits=16, 4bit, ...; default: kmeans.",
    )
    data_dir: str | None = DATA_DIR()
    window: int | None = flag(None, "--window", "Tokens per window of the text; default: 1024.")
    limit: int | None = flag(None, "--limit", "Maximum number of windows; default: 16.")

    @property
    def chosen_method(self) -> str:
        """The method that was given, or the default."""
        return self.method or ("4bit" if self.quick else "kmeans")

    @property
    def plan(self) -> PerplexityPlan:
        """The windows of the text."""
        from suffice.eval.perplexity import PerplexityPlan

        window, limit = (512, 4) if self.quick else (1024, 16)
        return PerplexityPlan(
            window if self.window is None else self.window,
            limit if self.limit is None else self.limit,
        )


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
    from suffice.checkpoints.files import fingerprint, locate
    from suffice.checkpoints.open import open_checkpoint
    from suffice.checkpoints.pooled import pooling_facts
    from suffice.decoder.weights import DecoderWeights
    from suffice.eval.perplexity import windows_of
    from suffice.eval.texts import described, load_text
    from suffice.quant.hadamard import block_of
    from suffice.quant.none import NoQuant
    from suffice.quantize.job import Quantizing
    from suffice.text.tokenizer import load_tokenizer

    if model.options.threads is not None:
        native.set_threads(model.options.threads)
        torch.set_num_threads(model.options.threads)
    name = flags.chosen_method
    method, plan = _method(name), flags.plan
    text = load_text(flags.text, flags.data_dir)
    path = locate(model.model)
    _check_apart(flags.output, path)
    with busy(f"loading {model.model}"):
        checkpoint = open_checkpoint(path)
        tokenizer = load_tokenizer(str(model.options.tokenizer or path))
        windows = windows_of(tokenizer, text, plan, checkpoint.config.longest_prompt)
        decoder = DecoderWeights.from_checkpoint(checkpoint, NoQuant("float32"))
    if method.hadamard:  # check before the text is run
        for inputs in checkpoint.config.input_sizes:
            block_of(inputs)
    facts = pooling_facts(checkpoint) | {
        "model": {"name": PurePath(model.model).name, "hash": fingerprint(path)},
        "method": name,
        "text": described(flags.text, text, windows),
    }
    quantizing = Quantizing(decoder, method, windows, flags.output, facts)
    try:
        if method.fisher or method.weighs_inputs:
            _show("windows weighed", len(windows), quantizing.weigh())
        _show("layers", len(decoder.config.layers), quantizing.run())
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with what is left", file=sys.stderr)
        raise
    quantizing.write(tokenizer)
    if quantizing.unreached:
        print(_unreached(quantizing.unreached), file=sys.stderr)
    print(flags.output)


def _unreached(experts: dict[int, list[int]]) -> str:
    """Return the line that says which experts the text did not reach, by layer."""
    listed = [
        f"layer {layer}: {', '.join(map(str, own[:MOST_LISTED]))}"
        + (f" and {len(own) - MOST_LISTED} more" if len(own) > MOST_LISTED else "")
        for layer, own in experts.items()
    ]
    more = f"; and {len(listed) - MOST_LISTED} more layers" if len(listed) > MOST_LISTED else ""
    return (
        f"the text never reached {sum(map(len, experts.values()))} experts, which are calibrated "
        f"on the inputs of all: {'; '.join(listed[:MOST_LISTED])}{more}"
    )


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
    from suffice.decoder.pages import trim_heap

    for _ in counted(what, total, done):
        trim_heap()
