"""The configuration of an engine: one frozen value, made once and passed down.

Importing this loads no model code, so bad options are refused at once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.attention import ATTENTIONS, SOFTMAXES, Attention, by_head, in_python, rule_of
from suffice.cache import Growth, check_rows, fits_keys, types_of
from suffice.engine.option_values import quant_name, stored_weights
from suffice.engine.options import EngineOptions, options, read, takes_options
from suffice.errors import InputError, OptionError, unknown
from suffice.experts import EXPERTS, ChoiceOfExperts
from suffice.policy import POLICIES, Policy
from suffice.pull import resolve
from suffice.speculate import SPECULATORS, Speculator

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.attention.levels import Levels
    from suffice.attention.rule import AttentionRule
    from suffice.attention.softmax import Softmax
    from suffice.decoder.config import DecoderConfig
    from suffice.quant import Quant


@dataclass(frozen=True)
class Config(EngineOptions):
    """The parsed options of an engine: one object per seam, and the limits.

    Make it with `create`; `EngineOptions` describes the options. "auto" types and None are filled
    in by `resolved`. The fields below have another type here than in `EngineOptions`.
    """

    model: str
    _: KW_ONLY
    tokenizer: str | None
    kv_cache_bytes: int | None
    quantization: Quant | None
    attention: Attention
    softmax: Softmax
    calibration: Calibration | None
    policy: Policy
    experts: ChoiceOfExperts
    growth: Growth
    speculative_config: Speculator
    adapters: tuple[tuple[str, str], ...]
    merge_adapter: str | None
    packed_bytes: int | None
    prefix_dir: Path | None
    prefix_disk_bytes: int | None
    prefix_max_age: float | None
    prefix_secret: Path | None

    @classmethod
    @takes_options(EngineOptions)
    def create(cls, options: EngineOptions) -> Config:
        """Build a config from a user's keywords: strings, numbers, or technique objects.

        Raises:
            InputError: An unknown option, a value out of range, or contradictory options.
        """
        return cls.built(options)

    @classmethod
    def built(cls, options: EngineOptions) -> Config:
        """Build a config from options.

        Raises:
            InputError: A value out of range, or contradictory options.
        """
        config = cls(**read(options))
        needed = config.softmax.coded or config.attention.calibrated
        if needed and config.calibration is None:
            config = dataclasses.replace(config, calibration=_stored_with(config.model))
        config._check_together()
        return config

    def _check_together(self) -> None:
        own = self.quantization and self.quantization.dtype
        if own is not None and self.dtype not in ("auto", own):
            raise InputError(
                f"dtype='{self.dtype}' contradicts quantization='{quant_name(self.quantization)}"
                f":dtype={own}': give only one"
            )
        if self.quantization is not None and self.quantization.needs_text:
            raise OptionError(
                "quantization",
                quant_name(self.quantization),
                "needs a calibration text: give what `suffice quantize --text` writes as the model",
            )
        if self.attention.calibrated:
            by_head.check(self.attention, self.calibration)
        elif not self.softmax.coded and self.calibration is not None:
            raise InputError(
                f"calibration={self.calibration.name}: softmax={SOFTMAXES.name_of(self.softmax)} "
                f"and attention={ATTENTIONS.name_of(self.attention)} need none"
            )
        self._check_python()
        names = [name for name, _ in self.adapters]
        if self.adapter is not None and self.adapter not in names:
            raise unknown("adapter", self.adapter, names)
        self._check_policy()
        self._check_softmax()
        self._check_audit()
        self._check_drafts(self.max_model_len)

    def _check_policy(self) -> None:
        if not self.policy.chooses:
            return
        policy, attention = (type(part).__name__.lower() for part in (self.policy, self.attention))
        if self.technique.needs_all_tokens:
            raise InputError(
                f"policy '{policy}' with attention '{attention}', which selects from all tokens "
                f"itself: the policy must be '{_default('policy')}'"
            )
        rule = rule_of(self.attention) if self.policy.needs_whole_softmax else None
        if rule is not None and not (rule.exact and rule.technique is None):
            raise InputError(
                f"policy '{policy}' sums the weights of all tokens, which attention "
                f"'{attention}' does not compute: the attention must be '{_default('attention')}'"
            )

    def _check_python(self) -> None:
        """Refuse what only native code can do."""
        attention, name = self.attention, ATTENTIONS.name_of(self.attention)
        if not in_python(attention):
            return
        owner = f"attention '{name}', which has no native code"
        if attention.calibrated:
            raise InputError(f"{owner}: calibrated thresholds are for native code: leave them out")
        if attention.sketched or attention.based:
            raise InputError(f"{owner}: only native code reads the cache's sketches and bases")
        policy = self.policy
        if policy.chooses and not policy.evicts:
            what = "selects within" if policy.by_query else "only orders rows for"
            raise InputError(
                f"policy '{POLICIES.name_of(policy)}' {what} native attention, with {owner}: the "
                f"policy must evict, or be '{_default('policy')}'"
            )

    def _check_softmax(self) -> None:
        name = SOFTMAXES.name_of(self.softmax)
        if not self.softmax.coded:
            return
        attention = ATTENTIONS.name_of(self.attention)
        if self.attention.needs_exact_softmax:
            raise InputError(
                f"softmax={name} contradicts attention={attention}, which needs the exact softmax"
            )
        if self.softmax.prefill and not self.attention.applies_to_prompts:
            raise InputError(
                f"softmax={name}:prefill=true contradicts attention={attention}, "
                "which does not apply to prompts"
            )
        if self.softmax.prefill and self.policy.chooses:
            raise InputError(
                f"softmax={name}:prefill=true contradicts policy="
                f"{POLICIES.name_of(self.policy)}, which needs prompts with the exact softmax: "
                "leave prefill out"
            )
        if self.calibration is None:
            raise InputError(
                f"softmax={SOFTMAXES.text_of(self.softmax)}: needs a calibration of the model: "
                "make one with `suffice calibrate --text FILE` and give it as calibration "
                "(--calibration)"
            )
        if not self.calibration.layers:
            raise InputError(
                f"calibration {self.calibration.name}: has no codebooks of a softmax: make one "
                "with `suffice calibrate`, without --budget"
            )

    def _check_audit(self) -> None:
        if self.audit is not None and not self.leaves_out:
            raise OptionError(
                "audit",
                self.audit,
                f"attention={ATTENTIONS.name_of(self.attention)} with "
                f"softmax={SOFTMAXES.name_of(self.softmax)} leaves nothing out of decode steps: "
                "choose a technique that does",
            )

    def _check_drafts(self, context: int | None) -> None:
        speculator = self.speculative_config
        drafts, method = speculator.num_speculative_tokens, SPECULATORS.name_of(speculator)
        if drafts and self.policy.one_by_one:
            raise InputError(
                f"speculator '{method}' with policy '{POLICIES.name_of(self.policy)}', which "
                "changes the visible tokens after each token: the policy must not evict while "
                "decoding, or have rank_only=true"
            )
        if drafts and in_python(self.attention) and not self.attention.stateless:
            raise InputError(
                f"speculator '{method}' with attention '{ATTENTIONS.name_of(self.attention)}', "
                "which keeps state in Python that drafts cannot undo: the speculator must be 'none'"
            )
        if speculator.drafts_with_own_model and self.policy.chooses:
            raise InputError(
                f"speculator '{method}' with policy '{POLICIES.name_of(self.policy)}': its drafts "
                f"select their own tokens, so the policy must be '{_default('policy')}'"
            )
        exact = rule_of(self.attention) is None and not self.softmax.coded
        if speculator.drafts_with_own_model and not exact:
            raise InputError(
                f"speculator '{method}' with attention={ATTENTIONS.name_of(self.attention)} and "
                f"softmax={SOFTMAXES.name_of(self.softmax)}: drafts must be checked by exact "
                "attention: give that attention to the speculator instead"
            )
        if context is not None and drafts > context - 2:
            raise InputError(
                f"num_speculative_tokens={drafts}: must be at most {max(context - 2, 0)}: the "
                f"context of {context} tokens holds a prompt and a token before them"
            )

    def with_attention(self, text: str) -> Config:
        """Return the config with another technique, without audits if they say nothing.

        Raises:
            InputError: There is no such technique, or it contradicts another option.
        """
        attention = ATTENTIONS.build(text)
        calibration = self.calibration
        if not (attention.calibrated or self.softmax.coded):
            calibration = None
        elif calibration is None:
            calibration = _stored_with(self.model)
        found = dataclasses.replace(self, attention=attention, calibration=calibration, audit=None)
        found._check_together()
        return dataclasses.replace(found, audit=self.audit) if found.leaves_out else found

    @cached_property
    def technique(self) -> Attention:
        """The attention technique, with the options that a calibration sets."""
        return by_head.applied(self.attention, self.calibration)

    @property
    def leaves_out(self) -> bool:
        """Whether decode steps approximate attention to the rows that the cache holds."""
        rule = rule_of(self.attention)
        return self.softmax.coded or self.policy.by_query or (rule is not None and not rule.exact)

    def check_model(self, model: DecoderConfig) -> None:
        """Require exact attention for models whose softmax techniques do not know.

        Raises:
            InputError: A technique leaves out keys, or chooses among them, by scores that the
                model changes; or it chooses among experts that there are not; or the model's rows
                cannot be stored as it needs.
        """
        if model.joint:
            self._check_joint(model)
        if not model.alike:
            self._check_alike()
        if self.experts.left_out and model.experts is None:
            name = EXPERTS.name_of(self.experts)
            raise InputError(f"experts={name}: {self.model} has no experts: leave out --experts")
        changed = model.score_cap or model.spare_logits
        own = self.leaves_out or in_python(self.attention)
        if changed and (own or self.policy.watches):
            what = "caps its scores" if model.score_cap else "has a spare logit in each softmax"
            raise InputError(
                f"{self.model} {what}, which techniques do not know: leave out --attention, "
                "--softmax, and a --policy that looks at attention"
            )

    def _check_joint(self, model: DecoderConfig) -> None:
        """Refuse what a cache of rows that are key and value at once cannot have."""
        if self.kv_cache_dtype != "auto":
            check_rows(model.head_size, model.joint, *types_of(self.kv_cache_dtype))
        attention = f"attention={ATTENTIONS.name_of(self.attention)}"
        speculator = f"speculative_config={SPECULATORS.name_of(self.speculative_config)}"
        for name, own in ((attention, self.attention), (speculator, self.speculative_config)):
            if own.based:
                raise InputError(
                    f"{name} reads 4-bit copies of keys and values, which {self.model} has none "
                    "of: it stores both as one row; choose another"
                )

    def _check_alike(self) -> None:
        """Refuse 4-bit keys, whose rounding is fitted to layers that have the same heads."""
        attention = f"attention={ATTENTIONS.name_of(self.attention)}"
        speculator = f"speculative_config={SPECULATORS.name_of(self.speculative_config)}"
        asked = [
            (f"kv_cache_dtype={self.kv_cache_dtype}", fits_keys(types_of(self.kv_cache_dtype)[0])),
            (attention, self.attention.based),
            (speculator, self.speculative_config.based),
        ]
        for name, fitted in asked:
            if fitted:
                raise InputError(
                    f"{name} rounds keys by a fit to heads of one size, and the layers of "
                    f"{self.model} have several; choose another"
                )

    def rules(self, layers: int, kv_heads: int) -> list[list[AttentionRule | None]]:
        """Return each layer's and key/value head's attention rule, [L][G]; None reads all.

        Raises:
            InputError: The calibration has another number of layers or heads.
        """
        return by_head.rules(self.attention, self.calibration, layers, kv_heads)

    @property
    def calibrated_tokens(self) -> int | None:
        """The length of the windows that the calibration ran, in tokens; None without one."""
        found = self.calibration
        if found is None:
            return None
        if self.attention.calibrated:
            return found.attention[ATTENTIONS.name_of(self.attention)].window
        return found.window

    def levels(self) -> list[list[Levels]]:
        """Return the levels of a coded softmax, [L][H]; an empty list without one."""
        if not self.softmax.coded or self.calibration is None:
            return []
        return self.softmax.levels(self.calibration)

    def check_session(self) -> None:
        """Require that a request may build on the tokens of the one before.

        Raises:
            InputError: The policy evicts some of these tokens.
        """
        if self.policy.evicts:
            raise InputError(
                f"policy '{type(self.policy).__name__.lower()}' evicts tokens that the next prompt "
                "of a chat builds on: give it rank_only=true, which only orders them"
            )

    def resolved(
        self, model_dtype: str, max_positions: int, most_positions: int | None = None
    ) -> Config:
        """Return the config with "auto" and None replaced by the model's values.

        `model_dtype` is the type of the checkpoint's weights. float16 runs as float32 unless
        bfloat16 is asked for, since bfloat16 cannot hold every float16 value. `max_positions` is
        the context length that the model was made for, and `most_positions` the largest that
        `max_model_len` may ask for, if it is another.

        Raises:
            InputError: `max_model_len` is larger.
        """
        from suffice import native  # not before: a config is made without the extension

        most = most_positions or max_positions
        if self.max_model_len is not None and self.max_model_len > most:
            raise OptionError(
                "max_model_len",
                self.max_model_len,
                f"must not be more than {most}, the context length of the model",
            )
        self._check_drafts(self.max_model_len or max_positions)
        quant_dtype = self.quantization and self.quantization.dtype
        found = "bfloat16" if model_dtype == "bfloat16" else "float32"
        dtype = (quant_dtype or found) if self.dtype == "auto" else self.dtype
        quant = stored_weights(self.quantization, self.dtype, dtype)
        kv = dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return dataclasses.replace(
            self,
            dtype=dtype,
            kv_cache_dtype=kv,
            quantization=quant,
            max_model_len=self.max_model_len or max_positions,
            threads=self.threads or native.cores(),
        )


def _default(option: str) -> Any:
    """Return an option's default, for messages."""
    return options()[option][0].default


def _stored_with(model: str) -> Calibration | None:
    """Read the calibration in a file next to a model, or else the one that it carries, if any."""
    from suffice.attention import calibration
    from suffice.checkpoints.carried import carried
    from suffice.checkpoints.files import configured

    try:
        path = calibration.default_path(Path(resolve(model)).expanduser())
        folder = configured(model)
    except InputError:  # no such model, hence none of its files; loading it raises the error
        return None
    if path.is_file():
        return calibration.read(path)
    return None if folder is None else carried(folder)
