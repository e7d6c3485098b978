"""The scripts and how long they take."""

from __future__ import annotations

import re
from typing import NamedTuple


class Script(NamedTuple):
    """A benchmark: its module below `benchmarks`, the measurement, and its duration."""

    module: str
    measures: str
    time: str


SCRIPTS = (
    Script("peers.speed", "decode, batch and prompt speed of suffice and its peers", "an hour"),
    Script("peers.batches", "prompts and batches of suffice and its peers", "30 minutes"),
    Script("peers.sizes", "shapes of models that people run, and llama.cpp", "hours"),
    Script("peers.quality", "the perplexity of the settings of peers.speed", "10 minutes"),
    Script(
        "peers.headline",
        "the README's tables, from results of peers.sizes, .speed, .quality, quant.files",
        "at once",
    ),
    Script("peers.start", "a first token, imports, environments: seconds and memory", "30 minutes"),
    Script(
        "engine.rows", "linear layers of 1 to 128 rows against the machine's limits", "2 minutes"
    ),
    Script("engine.attention_rows", "attention of 1 to 128 rows, against limits", "10 minutes"),
    Script("engine.step_parts", "what the steps of a batch spend their time on", "3 minutes"),
    Script("engine.recurrences", "recurrences of prompts against the peak", "1 minute"),
    Script("engine.experts", "a mixture of experts against its bytes, and llama.cpp", "5 minutes"),
    Script("engine.left_out", "what leaving out a token's lightest experts saves", "3 minutes"),
    Script("engine.adapters", "what LoRA adapters cost a decode step", "3 minutes"),
    Script("engine.kept_prompts", "prompts on disk: restarts, reading, writing", "4 minutes"),
    Script(
        "engine.long_contexts", "memory and times of 8,192 to 131,072 tokens, by type", "an hour"
    ),
    Script("engine.sampling", "streams and batches of drawn tokens, over bare steps", "5 minutes"),
    Script("attention.quality", "techniques: perplexity, KL divergence, bytes read", "20 minutes"),
    Script("attention.ruler", "RULER's needles under every technique and policy", "hours"),
    Script("attention.longbench", "LongBench's summaries under every technique", "hours"),
    Script("attention.speed", "decode steps at long context, by technique", "10 minutes"),
    Script("attention.policy_speed", "decode steps of ART over policies, by batch", "an hour"),
    Script("attention.kernel", "the attention kernel alone, and torch's", "10 minutes"),
    Script("attention.deep", "attention alone over 32,768 keys of a model", "3 minutes"),
    Script("attention.art", "ART's probe against the oracle, ablations, thresholds", "5 minutes"),
    Script("attention.by_layer", "ART with a threshold for each layer", "5 minutes"),
    Script("attention.by_head", "thresholds by head and for all heads", "an hour"),
    Script("attention.mass", "attention's spread over tokens, and the best clips", "2 minutes"),
    Script("attention.prompts", "prompts by techniques: times, and what follows", "half an hour"),
    Script(
        "attention.bounds", "bounds of tiers compared with the truth, softmax by softmax", "an hour"
    ),
    Script("attention.selection", "ways to select rows: Twilight, SparQ, ...", "an hour"),
    Script("attention.selector_ruler", "RULER's needles by ways to select rows", "hours"),
    Script("attention.rivals", "AET next to SpAtten's cascade and Token-Picker", "10 minutes"),
    Script("attention.tasks", "a coded softmax: accuracy on four tasks", "hours"),
    Script("attention.exaq", "attention by a coded softmax, against exact", "a minute"),
    Script("attention.softmax_share", "softmax's share of steps and prompts", "3 minutes"),
    Script("attention.exaq_tail", "a coded softmax's tail at long context", "10 minutes"),
    Script("attention.sketch", "the residuals of key sketches", "a minute"),
    Script("growth.bmc", "growth of the cache: the BMC paper's figures and tables", "30 minutes"),
    Script("growth.engine", "growth policies in the engine, plain decoding", "15 minutes"),
    Script("growth.use_cases", "Table II's use cases, vLLM and transformers", "30 minutes"),
    Script("growth.paged", "attention alone, over vLLM's paged kernel (Table VII)", "5 minutes"),
    Script("growth.varied", "Table III: a batch of prompts of different lengths", "15 minutes"),
    Script("growth.caches", "GrowingCache and transformers' own caches", "15 minutes"),
    Script("growth.shares", "what a step consists of: cache update, attention", "10 minutes"),
    Script("gpu.run", "the kernels for GPUs, part by part", "a minute a part, on a GPU"),
    Script("quant.quality", "low-bit weights and activations: perplexity", "hours"),
    Script("quant.tasks", "low-bit weights: accuracy on tasks", "30 minutes"),
    Script("quant.drift", "codebooks of activations, offline and online", "5 minutes"),
    Script("quant.matmul", "matmuls of codebook weights, outside the CPU caches", "3 minutes"),
    Script("quant.files", "files as they are, and llama.cpp: quality, speed", "an hour"),
    Script("quant.big_model", "decode steps and memory of a 7B shape in 4 bits", "3 minutes"),
    Script("quant.quantize_peers", "files of llama.cpp and HQQ, for quant.quality", "minutes"),
    Script(
        "quant.rotated_model", "SmolLM2 with weights off the grid, for quant.quality", "seconds"
    ),
    Script("speculate.speed", "speculative decoding by category of Spec-Bench", "an hour"),
    Script("speculate.trees", "trees of drafts against chains, and Sequoia's", "10 minutes"),
    Script("speculate.batches", "drafts of several requests, and the time they take", "20 minutes"),
    Script(
        "serve.speed", "suffice's server, vLLM's and llama.cpp's, by the same client", "an hour"
    ),
    Script("serve.exactness", "2,000 texts under faults, against undisturbed", "15 minutes"),
    Script("serve.disconnects", "what runs on after clients have left", "15 minutes"),
    Script("serve.batch", "a batch killed ten times: what runs twice, what differs", "20 minutes"),
    Script("serve.front", "CPU time of the front and the router, by what they do", "2 minutes"),
    Script("serve.sharing", "what a second engine of a node costs: memory, start", "2 minutes"),
    Script("serve.simulated", "`suffice plan`'s simulator against real runs", "25 minutes"),
    Script("serve.division", "one engine or several on the same cores", "10 minutes"),
    Script("serve.nodes", "up to a thousand simulated nodes behind one front", "10 minutes"),
    Script("serve.soak", "32 clients for long: lost requests, memory", "an hour"),
    Script(
        "serve.crosscheck",
        "`suffice bench serve` and `vllm bench serve` on one server",
        "5 minutes",
    ),
    Script("hw.scrooge", "the Scrooge accelerator on a real model's logits", "minutes"),
    Script("hw.codes", "what KLLM's accelerator counts in a real model", "3 minutes"),
    Script("hw.validate", "accelerator models against published figures", "30 seconds"),
    Script(
        "harness.merge_cells", "joins results whose cells several processes measured", "at once"
    ),
    Script("redraw", "write stored results' tables again, after a change of words", "seconds"),
)
_DATA = re.compile(r"--data-dir \S+")


def current(command: str) -> str:
    """Return a stored command for a page: data sets are in the folder `data`."""
    return _DATA.sub("--data-dir data", command)
