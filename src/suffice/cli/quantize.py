"""`suffice quantize`: stores a model in codes of few bits, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import counting_bar

if TYPE_CHECKING:
    from suffice.cli.eval_options import QuantizeFlags
    from suffice.cli.options import ModelFlags


def run(flags: QuantizeFlags, model: ModelFlags) -> None:
    """Quantise and write the file. After Ctrl-C, the same command goes on with the layers left.

    Raises:
        InputError: A method, text, flag or model that cannot be used, or a file that cannot be
            written.
    """
    if flags.output.suffix != ".safetensors" or not flags.output.parent.is_dir():
        raise InputError(
            f"-o {flags.output}: must be a .safetensors file in a folder that is there"
        )
    model.check_drafts("quantize")
    if model.quant is not None:
        raise InputError(f"--quant {model.quant}: quantize has --method instead")
    from suffice.eval.perplexity import Plan, windows_of
    from suffice.eval.texts import described, load_text
    from suffice.models.checkpoint import open_checkpoint
    from suffice.models.decoder import Decoder
    from suffice.models.fingerprint import fingerprint
    from suffice.models.locate import SUFFIX, locate
    from suffice.models.quantise import Quantising
    from suffice.models.tokenizer import load_tokenizer
    from suffice.quant.none import NoQuant

    method = _method(flags.method)
    plan = Plan(flags.window, flags.limit)
    text = load_text(flags.calibrate, flags.data_dir)
    path = locate(model.model)
    if path.suffix == SUFFIX:
        raise InputError(f"{path} is quantised already: give what it was made from")
    with busy(f"loading {model.model}"):
        checkpoint = open_checkpoint(path)
        tokenizer = load_tokenizer(model.tokenizer or path)
        windows = windows_of(tokenizer, text, plan, checkpoint.config.longest_prompt)
        decoder = Decoder.from_checkpoint(checkpoint, NoQuant("float32"))
    facts = {
        "model": {"name": PurePath(model.model).name, "hash": fingerprint(path)},
        "method": flags.method,
        "text": described(flags.calibrate, text, windows),
    }
    quantising = Quantising(decoder, method, windows, flags.output, facts)
    if method.fisher:
        _show("windows weighed", len(windows), quantising.weigh())
    _show("layers", len(decoder.config.layers), quantising.run())
    quantising.write(tokenizer)
    print(flags.output)


def _method(text: str) -> Any:
    """Return the method of a name.

    Raises:
        InputError: It is unknown, makes no use of a calibration, or its codes cannot be stored.
    """
    import torch

    from suffice.quant import QUANTS

    method = QUANTS.build(text)
    if not hasattr(method, "site"):
        raise InputError(
            f"--method {text}: needs no calibration; run the model with --quant {text}"
        )
    try:  # before a model is looked at for minutes
        coded = method.quantise(torch.linspace(-1, 1, 16 * 64).view(16, 64), torch.eye(64))
        method.packed(coded, None, method.site(torch.linspace(-1, 1, 64).expand(16, 64)))
    except InputError as error:
        raise InputError(f"--method {text}: {error}") from None
    return method


def _show(what: str, total: int, done: Iterator[int]) -> None:
    with counting_bar() as bar:
        task = bar.add_task(what, total=total)
        for _ in done:
            bar.update(task, advance=1)
