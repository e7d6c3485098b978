"""Runs suffice with several settings of inputs and cache, which share the codes of a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.peers.engines.suffice import Suffice
from benchmarks.peers.worker import serve
from suffice import LLM
from suffice.data.essay import essay
from suffice.decoder.weights import DecoderWeights
from suffice.engine.config import Config
from suffice.engine.load import SAMPLE
from suffice.engine.runner import Runner
from suffice.quant.file import AsStored
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes


class Settings:
    """A bare loop of each setting of `settings`, whose first is loaded from the file."""

    def __init__(self, options: dict[str, Any]) -> None:
        (first, given), *others = options["settings"].items()
        self._first = Suffice(options | given)
        self._loops = {first: self._first}
        for name, given in others:
            llm = sharing(self._first.llm, **given)
            self._loops[name] = Suffice(options | given, llm)

    def about(self) -> dict[str, Any]:
        return self._first.about()

    def roof(self) -> dict[str, Any]:
        return self._first.roof()

    def prefill(self, tokens: list[int], setting: str) -> dict[str, Any]:
        return self._loops[setting].prefill(tokens)

    def decode(self, prompts: list[list[int]], count: int, setting: str) -> dict[str, Any]:
        return self._loops[setting].decode(prompts, count)


def build(options: dict[str, Any]) -> Settings:
    return Settings(options)


def sharing(llm: LLM, quantization: str, kv: str) -> LLM:
    """Return an LLM with a setting of `file` and a cache of its own, and the codes of another."""
    wanted = Config.create(llm.config.model, quantization=quantization, kv_cache_dtype=kv)
    quant, own = wanted.quantization, llm.runner.decoder
    assert isinstance(quant, AsStored)
    weights = {
        name: replace(weight, most=INPUT_LEVELS[quant.for_matrix(name.rpartition(".")[2]).act_bits])
        if isinstance(weight, PackedCodes)
        else weight
        for name, weight in own.weights.items()
    }
    config = replace(
        llm.config,
        quantization=replace(quant, dtype=llm.config.quantization.dtype),
        kv_cache_dtype=kv,
    )
    tokenizer = llm.tokenizer
    runner = Runner(
        config, DecoderWeights(own.config, weights), lambda: tokenizer.encode(essay()[:SAMPLE])
    )
    return LLM.from_parts(config, runner, tokenizer)


if __name__ == "__main__":
    serve(build)
