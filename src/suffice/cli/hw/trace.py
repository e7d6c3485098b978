"""`suffice hw trace`: writes the attention logits of a model, as input of accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from suffice.cli.flags import REQUIRED, flag
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import counting_bar
from suffice.pull import DEFAULT_MODEL

if TYPE_CHECKING:
    import numpy as np

    from suffice.engine.runner import Runner


@dataclass(frozen=True)
class TraceFlags:
    """Model, text and output file of `hw trace`."""

    output: Path = flag(REQUIRED, "-o --output", "File to write (.npz).", environment=False)
    text: str = flag("wikitext2", "--text", "wikitext2, or a file.")
    model: str = flag(DEFAULT_MODEL, "-m --model", "As for `run`.")
    tokens: int = flag(1024, "--tokens", "Number of tokens.")
    data_dir: str | None = flag(None, "--data-dir", "Folder with data sets.")
    threads: int | None = flag(None, "--threads", "As for `run`.")


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
        task = bar.add_task("layers", total=len(runner.decoder.config.cached))
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
    import numpy as np

    from suffice_hw.scrooge.logits import TraceWriter

    config = runner.decoder.config
    windows = [layer.window for layer in config.cached if layer.window is not None]
    if windows and len(tokens) > min(windows):
        raise InputError(
            f"tokens={len(tokens)}: must be at most {min(windows)}, the window of layers of {name}"
        )
    sequence = runner.open("trace", len(tokens))
    with TraceWriter(path, name, config.kv_heads, config.head_size) as writer:
        queries = _Queries(len(config.cached))
        runner.observe(sequence, tokens, queries)
        for layer, parts in enumerate(queries.parts):
            q = np.concatenate(parts, axis=1) * np.float32(config.attention_scale)
            writer.add(_logits(q, sequence.cache.keys(layer)))
            report()
    runner.close(sequence)


class _Queries:
    """The queries of a prompt: for each layer, parts [H, T, D] in the order of the tokens."""

    def __init__(self, layers: int) -> None:
        self.parts: list[list[np.ndarray]] = [[] for _ in range(layers)]

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Append queries; see `QueryObserver`."""
        self.parts[layer].append(q)


def _logits(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return q k of scaled queries [H, T, D] and keys [G, T, D], float16 [H, T, T]."""
    import numpy as np

    shared = k.repeat(q.shape[0] // k.shape[0], axis=0)
    pairs = zip(q, shared, strict=True)  # one head at a time, because T x T is large
    return np.stack([np.tril(queries @ keys.T).astype(np.float16) for queries, keys in pairs])
