"""What an engine is built from: one frozen value, made once at the edge and passed down.

Importing this loads no torch, so that a bad option is refused at once.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice import native
from suffice.attention import ATTENTIONS, SOFTMAXES, Attention, by_head
from suffice.cache import GROWTHS, KV_DTYPES, Growth, types_of
from suffice.errors import InputError, unknown
from suffice.policy import POLICIES, Policy
from suffice.pull import resolve
from suffice.registry import Table
from suffice.speculate import SPECULATORS, Speculator

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.attention.softmax import Levels, Softmax
    from suffice.native import core
    from suffice.quant import Quant

DTYPES = ("auto", "float32", "bfloat16")
_UNITS = ("", "K", "M", "G", "T")
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Config:
    """The model, one object per seam, and the limits. Make it with `create`.

    Attributes:
        model: A known name, a Hugging Face directory or id, or a .gguf file.
        tokenizer: Where the tokenizer is, if not with the model.
        dtype: Type of the weights and of prefill; "auto" until `resolved`.
        kv_cache_dtype: Type of the cached keys and values, or "KEYS/VALUES"; "auto" until
            `resolved`.
        attention, softmax, policy, growth, speculate: The techniques.
        calibration: What `suffice calibrate` found out about the model, for those that need it.
        quant: How weights are stored; None, until `resolved`, for `dtype` as it is.
        max_model_len: Context length in tokens; None for what the model was made for.
        max_num_seqs: Most samples that decode together.
        threads: Threads of the native core; None for the cores this process may use.
        seed: Of requests that name none; None for a different one every time.
        prefill_chunk: Prompt tokens that run together.
        kv_cache_bytes: Most bytes that all caches together may take; None for no limit.
        audit: Compute exact attention as well in every so many decode steps, and say in the
            runner's trace what the techniques left out; None for never.
    """

    model: str
    attention: Attention
    softmax: Softmax
    policy: Policy
    growth: Growth
    quant: Quant | None
    speculate: Speculator
    calibration: Calibration | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 16
    threads: int | None = None
    seed: int | None = 0
    prefill_chunk: int = 512
    kv_cache_bytes: int | None = None
    audit: int | None = None

    @classmethod
    def create(cls, model: str | os.PathLike[str], **options: Any) -> Config:
        """Build a config from what a user writes: strings, numbers, or technique objects.

        The options are those of `LLM`.

        Raises:
            InputError: An unknown option, a value out of range, or two that contradict each other.
        """
        given = {**_DEFAULTS, **options}
        for name in options:
            if name not in _DEFAULTS:
                raise unknown("option", name, ["model", *_DEFAULTS])
        if not str(model):
            raise InputError(
                "model='': must be a known name, a directory, a hub id or a .gguf file"
            )
        attention = _technique("attention", ATTENTIONS, given["attention"])
        softmax = _technique("softmax", SOFTMAXES, given["softmax"])
        calibrated = softmax.coded or by_head.is_calibrated(attention)
        config = cls(
            model=str(model),
            attention=attention,
            softmax=softmax,
            calibration=_calibration(given["calibration"], str(model), calibrated),
            policy=_technique("policy", POLICIES, given["policy"]),
            growth=_technique("growth", GROWTHS, given["growth"]),
            quant=_quant(given["quantization"]),
            speculate=_technique(
                "speculative_config", SPECULATORS, _speculation(given["speculative_config"])
            ),
            tokenizer=None if given["tokenizer"] is None else str(given["tokenizer"]),
            dtype=_choice("dtype", given["dtype"], DTYPES),
            kv_cache_dtype=_kv_dtype(str(given["kv_cache_dtype"])),
            max_model_len=_whole("max_model_len", given["max_model_len"], 2, none=True),
            max_num_seqs=_whole("max_num_seqs", given["max_num_seqs"], 1),
            threads=_threads(given["threads"]),
            seed=_whole("seed", given["seed"], 0, none=True),
            prefill_chunk=_whole("prefill_chunk", given["prefill_chunk"], 1),
            kv_cache_bytes=_bytes("kv_cache_bytes", given["kv_cache_bytes"]),
            audit=_whole("audit", given["audit"], 1, none=True),
        )
        config._check_together()
        return config

    def _check_together(self) -> None:
        own = getattr(self.quant, "dtype", None)
        if own is not None and self.dtype not in ("auto", own):
            raise InputError(
                f"dtype='{self.dtype}' contradicts quantization='none:dtype={own}': give only one"
            )
        if by_head.is_calibrated(self.attention):
            by_head.check(self.attention, self.calibration)
        elif not self.softmax.coded and self.calibration is not None:
            raise InputError(
                f"calibration={self.calibration.name}: softmax={SOFTMAXES.name_of(self.softmax)} "
                f"and attention={ATTENTIONS.name_of(self.attention)} need none"
            )
        self._check_policy()
        self._check_softmax()
        self._check_audit()
        self._check_drafts(self.max_model_len)

    def _check_policy(self) -> None:
        if isinstance(self.policy, POLICIES.load("full")):
            return
        policy, attention = (type(part).__name__.lower() for part in (self.policy, self.attention))
        if self.attention.sketched:
            raise InputError(
                f"policy '{policy}' with attention '{attention}', which chooses and orders the "
                "tokens itself: the policy must be 'full'"
            )
        rule = self.attention.rule() if self.policy.whole_softmax else None
        if rule is not None and not rule.exact:
            raise InputError(
                f"policy '{policy}' sums the weights of all tokens, which attention "
                f"'{attention}' does not compute: the attention must be 'exact'"
            )

    def _check_softmax(self) -> None:
        name = SOFTMAXES.name_of(self.softmax)
        if not self.softmax.coded:
            return
        attention = ATTENTIONS.name_of(self.attention)
        if attention == "certified":
            raise InputError(
                f"softmax={name} contradicts attention=certified, whose bound is of the exact one"
            )
        if self.softmax.prefill and attention != "exact":
            raise InputError(
                f"softmax={name}:prefill=true contradicts attention={attention}, "
                "which does not apply to prompts"
            )
        if self.softmax.prefill and not isinstance(self.policy, POLICIES.load("full")):
            raise InputError(
                f"softmax={name}:prefill=true contradicts policy="
                f"{POLICIES.name_of(self.policy)}, which chooses after prompts that ran whole: "
                "leave prefill out"
            )
        if self.calibration is None:
            raise InputError(
                f"softmax={name}: needs a calibration of the model: make one with "
                "`suffice calibrate --text FILE` and give it as calibration (--calibration)"
            )
        if not self.calibration.layers:
            raise InputError(
                f"calibration {self.calibration.name}: says nothing of softmax: make one with "
                "`suffice calibrate`, without --budget"
            )

    def _check_audit(self) -> None:
        if self.audit is not None and not self.leaves_out:
            raise InputError(
                f"audit={self.audit}: attention={ATTENTIONS.name_of(self.attention)} with "
                f"softmax={SOFTMAXES.name_of(self.softmax)} leaves nothing out that a step could "
                "have read: choose a technique that does"
            )

    def _check_drafts(self, context: int | None) -> None:
        drafts, method = self.speculate.num_speculative_tokens, SPECULATORS.name_of(self.speculate)
        if drafts and self.policy.one_by_one:
            raise InputError(
                f"speculator '{method}' with policy '{POLICIES.name_of(self.policy)}', in which "
                "each token changes what the next one sees: the policy must be one that does not "
                "evict while decoding, or have keep=true"
            )
        if method == "self" and not isinstance(self.policy, POLICIES.load("full")):
            raise InputError(
                f"speculator '{method}' with policy '{POLICIES.name_of(self.policy)}': drafts "
                "choose the tokens that they see: the policy must be 'full'"
            )
        exact = ATTENTIONS.name_of(self.attention) == "exact" and not self.softmax.coded
        if method == "self" and not exact:
            raise InputError(
                f"speculator 'self' with attention={ATTENTIONS.name_of(self.attention)} and "
                f"softmax={SOFTMAXES.name_of(self.softmax)}: what checks the drafts must be exact: "
                "give that attention to the speculator instead"
            )
        if context is not None and drafts > context - 2:
            raise InputError(
                f"num_speculative_tokens={drafts}: must be at most {max(context - 2, 0)}: the "
                f"context of {context} tokens holds a prompt and a token before them"
            )

    @property
    def leaves_out(self) -> bool:
        """Whether decode steps leave something out of what the cache holds, or of its weights."""
        rule = self.attention.rule()
        by_query = "boxes" in self.policy.keeps
        return self.softmax.coded or by_query or (rule is not None and not rule.exact)

    def rules(self, layers: int, kv_heads: int) -> list[list[core.AttentionRule | None]]:
        """Return what attention reads in each layer and key/value head, [L][G]; None: everything.

        Raises:
            InputError: The calibration is of another number of them.
        """
        return by_head.rules(self.attention, self.calibration, layers, kv_heads)

    def levels(self) -> list[list[Levels]]:
        """Return the levels of a coded softmax, [L][H]; none without one."""
        if not self.softmax.coded or self.calibration is None:
            return []
        return self.softmax.levels(self.calibration)

    def check_session(self) -> None:
        """Require that a request may build on the tokens of the one before.

        Raises:
            InputError: The policy evicts some of them.
        """
        if self.policy.evicts:
            raise InputError(
                f"policy '{type(self.policy).__name__.lower()}' evicts tokens that the next prompt "
                "of a chat builds on: give it keep=true, which only orders them"
            )

    def resolved(
        self, model_dtype: str, max_positions: int, most_positions: int | None = None
    ) -> Config:
        """Return the config with what "auto" and None left to the model filled in.

        `model_dtype` is the type of the checkpoint's weights (float16 is run as bfloat16 only if
        asked for, since bfloat16 cannot hold all of it) and `max_positions` the context length the
        model was made for. `most_positions` may be asked for, if that is another number.

        Raises:
            InputError: `max_model_len` is more than that.
        """
        most = most_positions or max_positions
        if self.max_model_len is not None and self.max_model_len > most:
            raise InputError(
                f"max_model_len={self.max_model_len}: must not be more than {most}, "
                "the context length of the model"
            )
        self._check_drafts(self.max_model_len or max_positions)
        quant_dtype = getattr(self.quant, "dtype", None)
        found = "bfloat16" if model_dtype == "bfloat16" else "float32"
        dtype = (quant_dtype or found) if self.dtype == "auto" else self.dtype
        quant = self.quant or _quant(f"none:dtype={dtype}")
        kv = dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return dataclasses.replace(
            self,
            dtype=dtype,
            kv_cache_dtype=kv,
            quant=quant,
            max_model_len=self.max_model_len or max_positions,
            threads=self.threads or native.cores(),
        )


_DEFAULTS: dict[str, Any] = {
    "tokenizer": None,
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "max_model_len": None,
    "max_num_seqs": 16,
    "threads": None,
    "seed": 0,
    "attention": "exact",
    "softmax": "exact",
    "calibration": None,
    "policy": "full",
    "growth": "bmc",
    "speculative_config": None,
    "prefill_chunk": 512,
    "kv_cache_bytes": None,
    "audit": None,
}


def _technique(name: str, table: Table, value: Any) -> Any:
    return table.take(name, value)


def _calibration(value: Any, model: str, needed: bool) -> Any:
    """Read a calibration, if none is given but one is needed that which lies beside the model."""
    from suffice.attention import calibration

    if value is None:
        path = _beside(model) if needed else None
        return calibration.read(path) if path and path.is_file() else None
    return value if isinstance(value, calibration.Calibration) else calibration.read(value)


def _beside(model: str) -> Path | None:
    from suffice.attention import calibration

    try:
        return calibration.beside(Path(resolve(model)).expanduser())
    except InputError:  # a model that is nowhere has nothing beside it; who loads it will say so
        return None


def _quant(value: Any) -> Any:
    if value is None:
        return None
    from suffice.quant import QUANTS

    return _technique("quantization", QUANTS, value)


def _speculation(value: Any) -> Any:
    """Build a speculator from vLLM's form, {"method": "name", "option": value}."""
    if value is None:
        return "none"
    if not isinstance(value, Mapping):
        return value
    options = dict(value)
    method = options.pop("method", None)
    if not isinstance(method, str):
        known = ", ".join(SPECULATORS.names())
        raise InputError(f"speculative_config: needs 'method'. Known: {known}")
    return SPECULATORS.make(method, options)


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise unknown(name, str(value), allowed)
    return str(value)


def _kv_dtype(text: str) -> str:
    if text == "auto":
        return text
    types = types_of(text)
    for dtype in types:
        _choice("kv_cache_dtype", dtype, KV_DTYPES if "/" in text else ("auto", *KV_DTYPES))
    return "/".join(dict.fromkeys(types))


def _whole(name: str, value: Any, low: int, none: bool = False) -> Any:
    if value is None and none:
        return None
    text = f"a whole number of at least {low}" + (", or None" if none else "")
    number = str(value).strip()
    if isinstance(value, bool) or not number.isascii() or not number.isdigit():
        raise InputError(f"{name}={value!r}: must be {text}")
    if int(number) < low:
        raise InputError(f"{name}={value!r}: must be {text}")
    return int(number)


def _threads(value: Any) -> int | None:
    threads: int | None = _whole("threads", value, 1, none=True)
    if threads is not None and threads > native.cores():
        raise InputError(
            f"threads={threads}: must not be more than {native.cores()}, the cores available"
        )
    return threads


def _bytes(name: str, value: Any) -> int | None:
    if value is None:
        return None
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    size = int(match[1]) * 1024 ** _UNITS.index(match[2].upper()) if match else 0
    if size < 1:
        raise InputError(f"{name}={value!r}: must be a number of bytes, such as 4GiB, or None")
    return size
