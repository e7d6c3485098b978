"""Loads the model of a config: returns a runner and a tokenizer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from suffice import native
from suffice.data.essay import essay
from suffice.engine.config import Config
from suffice.engine.drafting import DraftModels
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.models.checkpoint import Checkpoint
from suffice.models.decoder import DecoderWeights
from suffice.models.files import fingerprint
from suffice.models.formats.quantized_file import Quantized
from suffice.models.open import open_model
from suffice.models.pages import to_huge_pages
from suffice.models.tokenizer import Tokenizer, load_tokenizer
from suffice.progress import status
from suffice.quant import QUANTS

SAMPLE = 8000  # characters of text; their tokens suffice to measure the model's keys


def _tokenizer(config: Config, opened: Checkpoint | Quantized) -> Tokenizer:
    """Load the tokenizer; one in the model's own GGUF file has been read with the model."""
    own = opened.metadata if isinstance(opened, Checkpoint) and not config.tokenizer else None
    return load_tokenizer(config.tokenizer or config.model, opened.config.vocab, own)


def load(config: Config) -> tuple[Config, Runner, Tokenizer]:
    """Load a config's model; return the resolved config, the runner and the tokenizer.

    Raises:
        InputError: The model cannot be used, or not with these options.
    """
    opened = open_model(config.model)
    model = opened.config
    if config.calibration is not None:
        config.calibration.check(config.model, fingerprint(opened.path))
    if isinstance(opened, Quantized) and config.quantization is not None:
        raise InputError(
            f"{config.model} is quantized already, by {opened.facts['method']}: leave out "
            "quantization"
        )
    config = config.resolved(opened.dtype, model.max_positions, model.most_positions)
    assert config.threads is not None
    native.set_threads(config.threads)
    if isinstance(opened, Quantized):
        config = replace(config, quantization=QUANTS.build(opened.facts["method"]))
    with ThreadPoolExecutor(1) as tokenizers, status(f"loading {config.model}") as report:
        loading = tokenizers.submit(_tokenizer, config, opened)
        if isinstance(opened, Quantized):
            to_huge_pages(opened.weights)
            decoder = DecoderWeights(model, opened.weights)
        else:
            assert config.quantization is not None
            decoder = DecoderWeights.from_checkpoint(opened, config.quantization, report)
        tokenizer = loading.result()
    runner = Runner(config, decoder, lambda: tokenizer.encode(essay()[:SAMPLE]))
    runner.stored_as = opened.stored_as
    runner.proposer = config.speculative_config.proposer(DraftModels(runner, load))
    return config, runner, tokenizer
