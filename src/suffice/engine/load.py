"""Loads the model of a config: returns a runner and a tokenizer."""

from __future__ import annotations

from dataclasses import replace

import torch

from suffice import native
from suffice.data.essay import essay
from suffice.engine.config import Config
from suffice.engine.drafting import DraftModels
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.models.files import fingerprint
from suffice.models.formats.quantized_file import Quantized
from suffice.models.open import open_model
from suffice.models.pages import to_huge_pages
from suffice.models.quantize.torch_decoder import TorchDecoder  # bridge
from suffice.models.tokenizer import Tokenizer, load_tokenizer
from suffice.quant import QUANTS

SAMPLE = 8000  # characters of text; their tokens suffice to measure the model's keys


def prefill_dtype(dtype: str) -> torch.dtype:
    """Return the type of prefill's matmuls for weights of a type.

    bfloat16 weights are multiplied in bfloat16 only on CPUs with tile instructions (AMX). On
    others, including AVX-512 with bfloat16, float32 and the native step are faster and more
    accurate.
    """
    fast = torch.cpu.get_capabilities().get("amx_bf16", False)
    return torch.bfloat16 if dtype == "bfloat16" and fast else torch.float32


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
            f"{config.model} is quantised already, by {opened.facts['method']}: leave out "
            "quantization"
        )
    config = config.resolved(opened.dtype, model.max_positions, model.most_positions)
    assert config.threads is not None
    native.set_threads(config.threads)
    torch.set_num_threads(config.threads)
    dtype = prefill_dtype(config.dtype)
    if isinstance(opened, Quantized):
        config = replace(config, quantization=QUANTS.build(opened.facts["method"]))
        to_huge_pages(opened.weights)
        decoder = TorchDecoder(model, opened.weights, dtype)  # bridge: DecoderWeights
    else:
        assert config.quantization is not None
        decoder = TorchDecoder.from_checkpoint(opened, config.quantization, dtype)  # bridge
    tokenizer = load_tokenizer(config.tokenizer or config.model)
    runner = Runner(config, decoder, lambda: tokenizer.encode(essay()[:SAMPLE]))
    runner.stored_as = opened.stored_as
    runner.proposer = config.speculative_config.proposer(DraftModels(runner, load))
    return config, runner, tokenizer
