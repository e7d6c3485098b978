"""A config is right when it is built, or it is not built.

Also tests option_values.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from suffice import LLM, Config, SamplingParams, native
from suffice.attention.exact import Exact
from suffice.errors import InputError
from suffice.quant.file import AsStored
from suffice.quant.int8 import Int8
from suffice.quant.none import NoQuant
from suffice.speculate.none import NoDrafts

KNOWN = (
    "adapter, adapters, attention, audit, calibration, dtype, experts, growth, kv_cache_bytes, "
    "kv_cache_dtype, max_model_len, max_num_seqs, merge_adapter, model, packed, packed_bytes, "
    "policy, prefill_chunk, prefix_dir, prefix_disk_bytes, prefix_max_age, prefix_secret, "
    "quantization, seed, softmax, speculative_config, threads, tokenizer"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_model_length": 1},
            f"unknown option 'max_model_length'. Did you mean 'max_model_len'? Known: {KNOWN}",
        ),
        (
            {"attention": "exakt"},
            "unknown attention 'exakt'. Did you mean 'exact'? Known: aet, art, certified, "
            "exact, skip_softmax, tiers",
        ),
        ({"attention": "exact:k=1"}, "attention 'exact' has no option 'k'. It has no options"),
        (
            {"attention": 3},
            "attention=3: must be a technique or its name. Known: aet, art, certified, "
            "exact, skip_softmax, tiers",
        ),
        (
            {"attention": Exact},
            f"attention={Exact!r}: must be a technique or its name. "
            "Known: aet, art, certified, "
            "exact, skip_softmax, tiers",
        ),
        (
            {"growth": SamplingParams(n=2)},
            f"growth={SamplingParams(n=2)!r}: must be a technique or its name. "
            "Known: bmc, double, iterative, step, upfront",
        ),
        (
            {"policy": Exact()},
            "policy=Exact(): must be a technique or its name. "
            "Known: full, h2o, pyramidkv, quest, snapkv, streaming",
        ),
        (
            {"policy": "ful"},
            "unknown policy 'ful'. Did you mean 'full'? "
            "Known: full, h2o, pyramidkv, quest, snapkv, streaming",
        ),
        (
            {"growth": "bcm"},
            "unknown growth 'bcm'. Did you mean 'bmc'? "
            "Known: bmc, double, iterative, step, upfront",
        ),
        (
            {"quantization": "int9"},
            "unknown quant 'int9'. Did you mean 'int8'? Known: 4bit, file, int8, kllm, kmeans, "
            "none, rtn",
        ),
        (
            {"dtype": "float23"},
            "unknown dtype 'float23'. Did you mean 'float32'? Known: auto, bfloat16, float32",
        ),
        (
            {"kv_cache_dtype": "int4"},
            "unknown kv_cache_dtype 'int4'. Did you mean 'int8'? "
            "Known: auto, bfloat16, float16, float32, int8, kmeans4, planes",
        ),
        *(
            (
                {"kv_cache_dtype": given},
                f"kv_cache_dtype='{given}': must be a type, or KEYS/VALUES such as int8/kmeans4",
            )
            for given in ("/planes", "planes/", "int8/int8/int8", "")
        ),
        (
            {"kv_cache_dtype": "int8/auto"},
            "unknown kv_cache_dtype 'auto'. Known: bfloat16, float16, float32, int8, "
            "kmeans4, planes",
        ),
        (
            {"dtype": "float32", "quantization": "none:dtype=bfloat16"},
            "dtype='float32' contradicts quantization='none:dtype=bfloat16': give only one",
        ),
        (
            {"speculative_config": {"k": 3}},
            "speculative_config: needs 'method'. Known: dflash, draft_model, eagle3, mtp, ngram, "
            "none, self, suffix",
        ),
        (
            {"speculative_config": {"method": "nne"}},
            "unknown speculator 'nne'. Did you mean 'none'? "
            "Known: dflash, draft_model, eagle3, mtp, ngram, none, self, suffix",
        ),
        (
            {"speculative_config": {"method": "none", "num_speculative_tokens": 3}},
            "speculator 'none' has no option 'num_speculative_tokens'. It has no options",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_token": 3}},
            "speculator 'ngram' has no option 'num_speculative_token'. Did you mean "
            "'num_speculative_tokens'? Options: adaptive, num_speculative_tokens, "
            "prompt_lookup_max, prompt_lookup_min",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": "many"}},
            "speculator 'ngram': num_speculative_tokens='many' must be a whole number",
        ),
        (
            {"speculative_config": "suffix:0"},
            "speculator 'suffix': num_speculative_tokens=0: must be between 1 and 31",
        ),
        (
            {"speculative_config": "ngram:8", "max_model_len": 8},
            "num_speculative_tokens=8: must be at most 6: the context of 8 tokens holds a prompt "
            "and a token before them",
        ),
        (
            {"speculative_config": "ngram", "policy": "h2o:budget=64"},
            "speculator 'ngram' with policy 'h2o', which changes the visible tokens after each "
            "token: the policy must not evict while decoding, or have rank_only=true",
        ),
        (
            {"max_model_len": 1},
            "max_model_len=1: must be a whole number of at least 2, or None",
        ),
        (
            {"max_model_len": "4k"},
            "max_model_len='4k': must be a whole number of at least 2, or None",
        ),
        ({"max_num_seqs": 0}, "max_num_seqs=0: must be a whole number of at least 1"),
        ({"max_num_seqs": None}, "max_num_seqs=None: must be a whole number of at least 1"),
        ({"prefill_chunk": -1}, "prefill_chunk=-1: must be a whole number of at least 1"),
        ({"seed": -1}, "seed=-1: must be a whole number of at least 0, or None"),
        ({"threads": 0}, "threads=0: must be a whole number of at least 1, or None"),
        ({"threads": True}, "threads=True: must be a whole number of at least 1, or None"),
        ({"threads": 1.0}, "threads=1.0: must be a whole number of at least 1, or None"),
        (
            {"threads": native.cores() + 1},
            f"threads={native.cores() + 1}: must not be more than {native.cores()}, "
            "the cores available",
        ),
        (
            {"kv_cache_bytes": 2**64},
            "kv_cache_bytes=18446744073709551616: must be less than 2^64 bytes; None sets no limit",
        ),
        (
            {"kv_cache_bytes": f"{2**34}GiB"},
            "kv_cache_bytes='17179869184GiB': must be less than 2^64 bytes; None sets no limit",
        ),
        (
            {"kv_cache_bytes": "lots"},
            "kv_cache_bytes='lots': must be a positive number of bytes, such as 4GiB, or None",
        ),
        (
            {"kv_cache_bytes": 0},
            "kv_cache_bytes=0: must be a positive number of bytes, such as 4GiB, or None",
        ),
    ],
    ids=str,
)
def test_a_bad_option_is_refused(options: dict[str, Any], message: str) -> None:
    for build in (Config.create, LLM):
        with pytest.raises(InputError) as error:
            build("model", **options)
        assert str(error.value) == message


def test_a_model_is_needed() -> None:
    with pytest.raises(InputError, match="model='': must be a known name"):
        Config.create("")


def test_strings_become_techniques() -> None:
    config = Config.create(
        "model",
        growth="step:rows=256",
        quantization="int8",
        kv_cache_bytes="2 GiB",
        threads="1",
        speculative_config={"method": "none"},
    )
    assert (config.attention, config.speculative_config) == (Exact(), NoDrafts())
    assert getattr(config.growth, "rows", None) == 256
    assert config.quantization == Int8()
    assert config.kv_cache_bytes == 2 * 1024**3
    assert config.threads == 1


def test_techniques_may_be_given_as_they_are() -> None:
    config = Config.create("model", attention=Exact(), quantization=NoQuant("float32"))
    assert config.attention == Exact()
    assert config.resolved("bfloat16", 8).dtype == "float32"


BFLOAT16, FLOAT32 = AsStored(dtype="bfloat16"), AsStored(dtype="float32")


@pytest.mark.parametrize(
    ("options", "model_dtype", "dtype", "kv", "quant"),
    [
        ({}, "bfloat16", "bfloat16", "bfloat16", BFLOAT16),
        ({}, "float32", "float32", "float32", FLOAT32),
        ({}, "float16", "float32", "float32", FLOAT32),
        ({"dtype": "bfloat16"}, "float32", "bfloat16", "bfloat16", NoQuant("bfloat16")),
        (
            {"dtype": "float32", "quantization": "file:act_bits=8"},
            "bfloat16",
            "float32",
            "float32",
            AsStored(8, "float32"),
        ),
        ({"kv_cache_dtype": "int8"}, "bfloat16", "bfloat16", "int8", BFLOAT16),
        ({"kv_cache_dtype": "int8/f16"}, "bfloat16", "bfloat16", "int8/float16", BFLOAT16),
        ({"kv_cache_dtype": "bf16"}, "float32", "float32", "bfloat16", FLOAT32),
        ({"dtype": "bf16"}, "float32", "bfloat16", "bfloat16", NoQuant("bfloat16")),
        (
            {"kv_cache_dtype": "int8/kmeans4"},
            "bfloat16",
            "bfloat16",
            "int8/kmeans4",
            BFLOAT16,
        ),
        ({"quantization": "int8"}, "bfloat16", "bfloat16", "bfloat16", Int8()),
        (
            {"quantization": "none:dtype=float32"},
            "bfloat16",
            "float32",
            "float32",
            NoQuant("float32"),
        ),
    ],
    ids=str,
)
def test_auto_follows_the_model(
    options: dict[str, Any], model_dtype: str, dtype: str, kv: str, quant: object
) -> None:
    config = Config.create("model", **options).resolved(model_dtype, 2048)
    assert (config.dtype, config.kv_cache_dtype, config.quantization) == (dtype, kv, quant)
    assert (config.max_model_len, config.threads) == (2048, native.cores())


def test_the_context_is_at_most_the_models() -> None:
    config = Config.create("model", max_model_len=4096)
    assert config.resolved("float32", 4096).max_model_len == 4096
    with pytest.raises(InputError) as error:
        config.resolved("float32", 2048)
    assert str(error.value) == (
        "max_model_len=4096: must not be more than 2048, the context length of the model"
    )
