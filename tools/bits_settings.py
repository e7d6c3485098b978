"""Settings and cases of `same_bits.py`: every technique, on tiny models and a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

REAL = "smollm2-135m"

ATTENTIONS = [
    "exact",
    "aet:keys=0.9,values=0.001",
    "aet:keys=0.7,values=0.1,globals=16,locals=20,sinks=17",
    "aet:keys=all,values=0.05,globals=0,sinks=0",
    "aet:keys=0.8,values=0.05,globals=16,order=sketch",
    "art:change=0.5,angle=0.5,patience=1,block=16,probe=16",
    "art:change=0.3,angle=0.3,patience=2,block=32,probe=16,values=0.1",
    "art:change=0.5,angle=0.5,patience=1,block=16,probe=16,order=sketch",
    "certified",
    "certified:eps=0.3,values=0.01",
    "certified:bounded=false,eps=0.3",
    "certified:bounded=false,eps=0.5,values=0.05",
    "skip_softmax:factor=40",
    "skip_softmax:factor=40,block=16,split=64",
]
CALIBRATED = ["certified:calibrated=true", "aet:calibrated=true"]
SOFTMAXES = [
    "exaq",
    "exaq:bits=3,clip=solve",
    "exaq:bits=4,clip=minmax,tail=flush",
    "exaq:bits=3,clip=fit",
    "exaq:bits=2,prefill=true",
    "exaq_km",
    "exaq_km:bits=3,tail=flush",
    "exaq_km:bits=4",
]
CODED = [
    "aet:keys=0.8,values=0.1",
    "art:change=0.5,angle=0.5,patience=1,block=16,probe=16,values=0.1",
    "skip_softmax:factor=40,block=16",
]
POLICIES = [
    "h2o:budget=64",
    "h2o:ratio=0.3",
    "h2o:rank_only=true",
    "pyramidkv:budget=128",
    "pyramidkv:ratio=0.4",
    "quest:budget=64",
    "quest:budget=96,dense_layers=0",
    "snapkv:budget=80",
    "snapkv:ratio=0.5",
    "snapkv:rank_only=true",
    "streaming:budget=64",
    "streaming:budget=48,sinks=16",
    "streaming:rank_only=true",
]
GROWTHS = ["bmc", "bmc:rows=64", "double", "iterative", "step:rows=48", "upfront"]
CAPACITIES = ["bmc:ratio=1000", "bmc:ratio=1000,group=4,shrink=2", *GROWTHS[1:]]
QUANTS = [
    "none:dtype=float32",
    "none:dtype=bfloat16",
    "int8",
    "kmeans:bits=4,act_bits=16",
    "kmeans:bits=4,act_bits=8",
    "kmeans:bits=2,act_bits=8",
    "kmeans:bits=3,group=64",
    "kmeans:bits=5,act_bits=8,hadamard=false",
    "kmeans:bits=6,act_bits=16,group=64",
    "kmeans:bits=4,act_bits=8,sites=qkv+down",
    "rtn",
    "rtn:bits=2,act_bits=8",
    "rtn:bits=3,act_bits=16,group=32",
    "rtn:bits=5,act_bits=8,group=32",
    "rtn:bits=6",
]
LEARNED = [
    "kmeans:bits=4,act_bits=16",
    "kmeans:bits=4,act_bits=8,fisher=false",
    "kmeans:bits=4,act_bits=4",
    "kmeans:bits=3,act_bits=3,outliers=0.02",
    "kmeans:bits=4,act_bits=4,hadamard=false,act_group=16",
    "kllm",
    "kllm:offline=true",
    "rtn:bits=3,group=32,compensate=true,fisher=true",
]
STORAGES = [
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "kmeans4",
    "bfloat16/int8",
    "int8/kmeans4",
    "kmeans4/float16",
    "float16/int8",
]
SPECULATORS: list[dict[str, Any]] = [
    {"method": "ngram"},
    {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2},
    {"method": "suffix"},
    {"method": "suffix", "tree": True, "min_token_prob": 0.0, "max_spec_factor": 4.0},
    {"method": "self", "recent": 32, "sinks": 4},
    {
        "method": "self",
        "recent": 0,
        "quantization": None,
        "attention": "certified:bounded=false,eps=0.5",
    },
    {"method": "self", "recent": 64, "quantization": "int8", "skip_layers": "1"},
    {"method": "draft_model", "num_speculative_tokens": 3},
]
VARIANTS = ["llama", "mistral", "qwen2", "qwen3-window", "gemma3", "opt-post", "llama-yarn"]
FEW: list[dict[str, Any]] = [  # settings for all variants but the first
    {},
    {"quantization": "int8", "kv_cache_dtype": "int8"},
    {"quantization": "kmeans:bits=4,act_bits=8", "kv_cache_dtype": "kmeans4"},
    {"attention": "aet:keys=0.7,values=0.1,globals=16", "kv_cache_dtype": "bfloat16"},
    {"attention": "certified:eps=0.3,values=0.01"},
    {"policy": "snapkv:budget=64"},
    {"policy": "h2o:budget=64"},
    {"speculative_config": {"method": "suffix", "adaptive": False}},
    {"softmax": "exaq:bits=3,clip=fit"},
]
REAL_ONES: list[dict[str, Any]] = [
    {},
    {"dtype": "bfloat16"},
    {"quantization": "int8", "kv_cache_dtype": "int8"},
    {"quantization": "rtn:group=64,act_bits=8", "kv_cache_dtype": "kmeans4"},
    {"quantization": "kmeans:bits=4,act_bits=8,rounds=1"},
    {"attention": "aet:keys=0.9,values=0.001", "kv_cache_dtype": "bfloat16"},
    {"attention": "art", "kv_cache_dtype": "float16"},
    {"attention": "certified:eps=0.1", "kv_cache_dtype": "int8"},
    {"policy": "snapkv:ratio=0.3"},
    {"speculative_config": {"method": "suffix", "tree": True, "adaptive": False}},
]


def settings(calibration: str, draft: str) -> Iterator[dict[str, Any]]:
    """Yield the options of every setting of the record, except those of quantized files."""
    yield {}
    yield from ({"attention": each} for each in ATTENTIONS)
    yield {"attention": ATTENTIONS[2], "kv_cache_dtype": "bfloat16", "audit": 3}
    yield {"attention": ATTENTIONS[9], "kv_cache_dtype": "kmeans4"}
    yield from ({"attention": each, "calibration": calibration} for each in CALIBRATED)
    yield from ({"softmax": each, "calibration": calibration} for each in SOFTMAXES)
    for attention in CODED:
        yield {"softmax": "exaq", "attention": attention, "calibration": calibration}
    yield from ({"policy": each} for each in POLICIES)
    yield {"policy": "snapkv:rank_only=true", "attention": ATTENTIONS[2]}
    yield {"policy": "quest:budget=64", "attention": ATTENTIONS[5]}
    yield from ({"growth": each} for each in GROWTHS)
    yield from ({"quantization": each, "dtype": "auto"} for each in QUANTS)
    yield from ({"kv_cache_dtype": each} for each in STORAGES)
    yield {"kv_cache_dtype": "kmeans4", "softmax": "exaq", "calibration": calibration}
    for speculator in SPECULATORS:
        extra = {"model": draft} if speculator["method"] == "draft_model" else {}
        yield {"speculative_config": {**speculator, **extra, "adaptive": False}}
