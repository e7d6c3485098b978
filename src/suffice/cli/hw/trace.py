"""`suffice hw trace`: writes the attention logits of a model, as input of accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

from suffice.cli.flags import WHOLE, flag
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import counting_bar
from suffice.pull import DEFAULT_MODEL

if TYPE_CHECKING:
    import torch

    from suffice.engine.runner import Runner


@dataclass(frozen=True)
class TraceFlags:
    """Model, text and output file of `hw trace`."""

    output: Annotated[Path, flag("-o", "--output", help="File to write (.npz).", environment=False)]
    text: Annotated[str, flag("--text", help="wikitext2, or a file.")] = "wikitext2"
    model: Annotated[str, flag("-m", "--model", help="As for `run`.")] = DEFAULT_MODEL
    tokens: Annotated[int, flag("--tokens", help="Number of tokens.", **WHOLE)] = 1024
    data_dir: Annotated[str | None, flag("--data-dir", help="Folder with data sets.")] = None
    threads: Annotated[int | None, flag("--threads", help="As for `run`.", **WHOLE)] = None


def run(flags: TraceFlags) -> None:
    """Write a trace, and print its path; Ctrl-C leaves no file.

    Raises:
        InputError: A model, text or path cannot be used, or the text has fewer tokens.
    """
    if flags.output.suffix != ".npz":
        raise InputError(f"-o {flags.output}: must end with .npz")
    if not flags.output.absolute().parent.is_dir():
        raise InputError(f"-o {flags.output}: there is no folder {flags.output.parent}")
    if flags.tokens < 2:
        raise InputError(f"--tokens {flags.tokens}: must be at least 2")
    from suffice.engine.config import Config
    from suffice.engine.load import load
    from suffice.eval.texts import load_text

    text = load_text(flags.text, flags.data_dir)
    with busy(f"loading {flags.model}"):
        config = Config.create(
            flags.model, dtype="float32", max_model_len=flags.tokens, threads=flags.threads
        )
        _, runner, tokenizer = load(config)
    tokens = tokenizer.encode(text)[: flags.tokens]
    if len(tokens) < flags.tokens:
        raise InputError(f"--tokens {flags.tokens}: the text has only {len(tokens)}")
    with counting_bar() as bar:
        task = bar.add_task("layers", total=len(runner.decoder.config.layers))
        write(runner, PurePath(flags.model).name, tokens, flags.output, lambda: bar.advance(task))
    print(flags.output)


def write(
    runner: Runner,
    name: str,
    tokens: list[int],
    path: Path,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Run tokens through a model and write its attention logits, layer by layer.

    Args:
        runner: The model.
        name: The model's name in the trace.
        tokens: The text, run as a single prompt, so that each layer is computed completely.
        path: The output file.
        report: Called after each layer.

    Raises:
        InputError: More tokens than a layer's sliding window; Scrooge supports no windows.
    """
    import torch

    from suffice_hw.scrooge.logits import TraceWriter

    config = runner.decoder.config
    windows = [layer.window for layer in config.layers if layer.window is not None]
    if windows and len(tokens) > min(windows):
        raise InputError(
            f"tokens={len(tokens)}: must be at most {min(windows)}, the window of layers of {name}"
        )
    sequence = runner.open("trace", len(tokens))
    cache = sequence.cache
    cache.reserve(len(tokens))
    kv_heads, _, size = cache.keys(0, 0).shape
    with TraceWriter(path, name, kv_heads, size) as writer:

        def watch(layer: int, q: torch.Tensor) -> None:
            writer.add(_logits(q * config.attention_scale, cache.keys(layer, len(tokens))))
            report()

        seen: Any = watch
        runner.decoder.forward(torch.tensor(tokens), cache, logits="none", watch=seen)
    runner.close(sequence)


def _logits(q: torch.Tensor, k: torch.Tensor) -> Any:
    """Return q k of scaled queries [H, T, D] and keys [G, T, D], float16 [H, T, T]."""
    import torch

    shared = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    pairs = zip(q.float(), shared, strict=True)  # one head at a time, because T x T is large
    return torch.stack([(queries @ keys.T).tril().half() for queries, keys in pairs]).numpy()
