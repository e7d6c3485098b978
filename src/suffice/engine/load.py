"""Loads the model of a config: returns a runner and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from suffice import native
from suffice.checkpoints.adapters import read_adapters
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.contents import Seen, model_files, seen
from suffice.checkpoints.files import fingerprint
from suffice.checkpoints.formats.quantized_file import Quantized
from suffice.checkpoints.merged import merged
from suffice.checkpoints.open import open_model
from suffice.checkpoints.packed_store import place_of
from suffice.checkpoints.pooled import pooling_of
from suffice.data.essay import essay
from suffice.decoder.config import DecoderConfig
from suffice.decoder.pages import to_huge_pages
from suffice.decoder.pooling import Pooling
from suffice.decoder.shelf import Shelf
from suffice.decoder.weights import DecoderWeights
from suffice.engine.config import Config
from suffice.engine.context_memory import check_context
from suffice.engine.drafting import DraftModels
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.outside import is_outside, reported
from suffice.progress import status
from suffice.quant import QUANTS
from suffice.quant.panels import Allocate
from suffice.speculate import SPECULATORS, Proposer, Speculator
from suffice.speculate.proposers import Checked
from suffice.text.tokenizer import Tokenizer, load_tokenizer

SAMPLE = 8000  # characters of text; their tokens suffice to measure the model's keys


@dataclass(frozen=True)
class Packed:
    """A model whose weights are packed; none of its files is needed any more.

    `dtype` is the checkpoint's, `method` that of a file of `suffice quantize`, `stamp` the
    fingerprint of its files, and `seen` what the system said of them when they were read.
    """

    decoder: DecoderWeights
    tokenizer: Tokenizer
    dtype: str
    method: str | None
    stored_as: str
    stamp: str
    pooling: Pooling
    seen: tuple[Seen, ...]


def load(config: Config, shelf: Shelf | None = None) -> tuple[Config, Runner, Tokenizer]:
    """Load a config's model; return the resolved config, the runner and the tokenizer.

    What a `shelf` has is taken from there, and what it has not is put there.

    Raises:
        InputError: The model cannot be used, or not with these options.
    """
    shelf = shelf or Shelf()
    stored = config.tokenizer, config.quantization, config.dtype, config.merge_adapter
    name = repr((config.model, *stored))
    packed = shelf.kept(name, lambda allocate: _packed(config, allocate))
    model, tokenizer = packed.decoder.config, packed.tokenizer
    config = _resolved(config, model, packed.dtype, packed.method, packed.stamp)
    assert config.threads is not None
    native.set_threads(config.threads)
    adapters = read_adapters(config.adapters, model, config.dtype)
    sample = lambda: tokenizer.encode(essay()[:SAMPLE])  # noqa: E731
    assert config.max_model_len is not None
    decoder = DecoderWeights(model.fitted(config.max_model_len), packed.decoder.weights)
    runner = Runner(config, decoder, sample, adapters, packed.stamp)
    runner.stored_as, runner.pooling, runner.seen = packed.stored_as, packed.pooling, packed.seen
    runner.proposer = _proposer(config.speculative_config, DraftModels(runner, load, shelf), model)
    return config, runner, tokenizer


def _proposer(speculator: Speculator, models: DraftModels, model: DecoderConfig) -> Proposer:
    """Return the proposer of a speculator.

    Raises:
        InputError: It needs a model that cannot be used, or it is from outside and fails.
    """
    if not is_outside(type(speculator)):
        return speculator.proposer(models)
    name = SPECULATORS.name_of(speculator)
    with reported(f"speculator '{name}' fails"):
        return Checked(speculator.proposer(models), name, model.vocab)


def _resolved(
    config: Config, model: DecoderConfig, dtype: str, method: str | None, stamp: str
) -> Config:
    """Return a config with the model's values.

    Raises:
        InputError: Options that do not suit the model.
    """
    if config.calibration is not None:
        config.calibration.check(config.model, stamp, config.merge_adapter)
    if method is not None and config.quantization is not None:
        raise InputError(
            f"{config.model} is quantized already, by {method}: leave out quantization"
        )
    config.check_model(model)
    asked = config.max_model_len
    config = config.resolved(dtype, model.max_positions, model.most_positions)
    if asked is not None:  # by its default a context may be longer than any text that comes
        check_context(asked, model, config.kv_cache_dtype, config.kv_cache_bytes)
    return config if method is None else replace(config, quantization=QUANTS.build(method))


def _packed(config: Config, allocate: Allocate | None) -> Packed:
    """Read a model's files and pack its weights.

    Raises:
        InputError: The model cannot be used, or not with these options.
    """
    opened = open_model(config.model)
    model, stamp = opened.config, fingerprint(opened.path)
    found = seen(model_files(opened.path))
    method = str(opened.facts["method"]) if isinstance(opened, Quantized) else None
    if config.merge_adapter is not None:
        if isinstance(opened, Quantized):
            raise InputError(
                f"{config.model} is quantized already: --adapter leaves its weights as they are"
            )
        opened, stamp = merged(opened, config.merge_adapter, stamp)
    config = _resolved(config, model, opened.dtype, method, stamp)
    assert config.threads is not None
    native.set_threads(config.threads)
    with ThreadPoolExecutor(1) as tokenizers, status(f"loading {config.model}") as report:
        loading = tokenizers.submit(_tokenizer, config, opened)
        if isinstance(opened, Quantized):
            to_huge_pages(opened.weights, allocate)
            decoder = DecoderWeights(model, opened.weights)
        else:
            decoder = _decoder(config, opened, stamp, report, allocate)
        tokenizer = loading.result()
    told = opened.dtype, method, opened.stored_as, stamp
    return Packed(decoder, tokenizer, *told, pooling_of(opened), found)


def _decoder(
    config: Config,
    opened: Checkpoint,
    stamp: str,
    report: Callable[[float], None],
    allocate: Allocate | None,
) -> DecoderWeights:
    """Read a model's weights as an earlier start packed them, or pack them.

    Those of a merged adapter are not kept.

    Raises:
        InputError: A damaged checkpoint.
    """
    assert config.quantization is not None
    quant, limit = config.quantization, config.packed_bytes
    keeps = config.packed and config.merge_adapter is None
    place = place_of(opened.path, stamp, quant, limit) if keeps else None
    kept = place.read(allocate) if place else None
    if kept is not None:
        return DecoderWeights(opened.config, kept)
    decoder = DecoderWeights.from_checkpoint(opened, quant, report, allocate)
    if place is not None:
        place.keep(decoder.weights)
    return decoder


def _tokenizer(config: Config, opened: Checkpoint | Quantized) -> Tokenizer:
    """Load the tokenizer; one in the model's own GGUF file has been read with the model."""
    own = opened.metadata if isinstance(opened, Checkpoint) and not config.tokenizer else None
    return load_tokenizer(config.tokenizer or config.model, opened.config.vocab, own)
