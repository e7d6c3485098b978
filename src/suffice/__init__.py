"""An LLM decoding engine that does the work that suffices, and says what it skipped.

The names load what they need when they are first used: importing suffice loads no NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suffice.engine.async_llm import AsyncLLM
    from suffice.engine.config import Config
    from suffice.engine.embedded import EmbeddingRequestOutput
    from suffice.engine.llm import LLM
    from suffice.engine.request import CompletionOutput, RequestOutput
    from suffice.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Config",
    "EmbeddingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_MODULES = {
    "LLM": "suffice.engine.llm",
    "AsyncLLM": "suffice.engine.async_llm",
    "CompletionOutput": "suffice.engine.request",
    "Config": "suffice.engine.config",
    "EmbeddingRequestOutput": "suffice.engine.embedded",
    "RequestOutput": "suffice.engine.request",
    "SamplingParams": "suffice.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'suffice' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
