"""What there is to run, how long it takes, and what old names have become."""

from __future__ import annotations

from typing import NamedTuple


class Script(NamedTuple):
    """A benchmark: its module below `benchmarks`, what it measures, and how long it takes."""

    module: str
    measures: str
    time: str


SCRIPTS = (
    Script("peers.speed", "decode, batch and prompt speed of suffice and its peers", "an hour"),
    Script("peers.quality", "the perplexity of what peers.speed times", "10 minutes"),
    Script("peers.headline", "the README's table, from the results of these two", "at once"),
    Script("attention.quality", "techniques: perplexity, KL divergence, bytes read", "20 minutes"),
    Script("attention.ruler", "RULER's needles under every technique and policy", "hours"),
    Script("attention.speed", "decode steps deep in a text, by technique", "10 minutes"),
    Script("attention.kernel", "the attention kernel alone, and torch's", "10 minutes"),
    Script("attention.art", "ART's probe against the oracle, ablations, thresholds", "5 minutes"),
    Script("attention.exaq", "attention by codes alone, against exact attention", "a minute"),
    Script("attention.exaq_tail", "what codes do to the tail at long context", "10 minutes"),
    Script("attention.sketch", "what sketches of keys leave out", "a minute"),
    Script("growth.bmc", "growth of the cache: the BMC paper's figures and tables", "30 minutes"),
    Script("quant.quality", "few bits of weights and activations: perplexity", "hours"),
    Script("quant.tasks", "few bits: right answers on PIQA", "30 minutes"),
    Script("quant.matmul", "matmuls of weights in codes, out of the cache", "3 minutes"),
    Script("quant.big_model", "decode steps and memory of a 7B shape in 4 bits", "3 minutes"),
    Script("quant.quantize_peers", "files of llama.cpp and HQQ, for quant.quality", "minutes"),
    Script("quant.rotated_model", "SmolLM2 with weights on no grid, for quant.quality", "seconds"),
    Script("speculate.speed", "speculative decoding by category of Spec-Bench", "an hour"),
    Script("hw.scrooge", "the Scrooge accelerator on a real model's logits", "minutes"),
    Script("hw.validate", "accelerator models against published figures", "30 seconds"),
    Script("redraw", "tables of stored results again, after a change of words", "seconds"),
)
# Stored results keep the command that made them: `python benchmarks/OLD.py` is
# `python -m benchmarks.NEW` today.
RENAMED = {
    "art": "attention.art",
    "attention": "attention.kernel",
    "attention_quality": "attention.quality",
    "attention_speed": "attention.speed",
    "base_plane": "attention.sketch",
    "big_model": "quant.big_model",
    "bmc": "growth.bmc",
    "exaq": "attention.exaq",
    "exaq_tail": "attention.exaq_tail",
    "index_matmul": "quant.matmul",
    "peer_quantise": "quant.quantize_peers",
    "peers": "peers.speed",
    "quant_quality": "quant.quality",
    "quant_tasks": "quant.tasks",
    "rotated_model": "quant.rotated_model",
    "ruler": "attention.ruler",
    "scrooge": "hw.scrooge",
    "speculate": "speculate.speed",
}
