"""Options of vLLM that have no effect here: accepted with a warning, or refused.

This is their only table. `LLM` takes them as keywords, the command line as flags. Values that ask
for something suffice lacks are refused.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from suffice.errors import InputError, SufficeWarning


@dataclass(frozen=True)
class Foreign:
    """An option of vLLM.

    Attributes:
        why: Why it has no effect.
        allowed: The accepted values, as lower-case text; () for any.
        switch: Whether its flag takes no value.
    """

    why: str
    allowed: tuple[str, ...] = ()
    switch: bool = False


_ONE = ("1",)
_OFF = ("false", "none", "0")
FOREIGN = {
    "gpu_memory_utilization": Foreign("there is no GPU; kv_cache_bytes limits the cache"),
    "tensor_parallel_size": Foreign("one process computes everything", _ONE),
    "pipeline_parallel_size": Foreign("one process computes everything", _ONE),
    "data_parallel_size": Foreign("one process computes everything", _ONE),
    "distributed_executor_backend": Foreign("one process computes everything"),
    "device": Foreign("all runs on the CPU", ("cpu", "auto", "none")),
    "enforce_eager": Foreign("there are no CUDA graphs", switch=True),
    "disable_custom_all_reduce": Foreign("there is no GPU", switch=True),
    "compilation_config": Foreign("nothing is compiled at run time"),
    "swap_space": Foreign("the cache is in main memory"),
    "cpu_offload_gb": Foreign("the weights are in main memory"),
    "block_size": Foreign("the cache is not paged"),
    "num_gpu_blocks_override": Foreign("the cache is not paged"),
    "enable_prefix_caching": Foreign("a session keeps its own cache", switch=True),
    "enable_chunked_prefill": Foreign("prefill_chunk sets the chunk of prompts", switch=True),
    "max_num_batched_tokens": Foreign("max_num_seqs limits what runs together"),
    "disable_log_stats": Foreign("nothing is logged", switch=True),
    "disable_log_requests": Foreign("nothing is logged", switch=True),
    "load_format": Foreign(
        "the file determines the format", ("auto", "safetensors", "gguf", "hf", "none")
    ),
    "trust_remote_code": Foreign("no code of a model is ever run", _OFF, switch=True),
    "enable_lora": Foreign("there are no adapters", _OFF, switch=True),
}


def take(name: str, value: Any, shown: str | None = None) -> None:
    """Warn that an option does nothing; `shown` is how it was written.

    Raises:
        InputError: Its value asks for something that suffice lacks.
    """
    own = FOREIGN[name]
    shown = shown or f"{name}={value!r}"
    if own.allowed and str(value).lower() not in own.allowed:
        raise InputError(f"{shown}: {own.why}: leave it out, or give {own.allowed[0]}")
    warnings.warn(f"{shown} does nothing here: {own.why}", SufficeWarning, stacklevel=4)


def without_foreign(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the keywords of vLLM that have no effect here, with a warning for each.

    Raises:
        InputError: The value of one asks for something that suffice lacks.
    """
    for name, value in given.items():
        if name in FOREIGN:
            take(name, value)
    return {name: value for name, value in given.items() if name not in FOREIGN}
