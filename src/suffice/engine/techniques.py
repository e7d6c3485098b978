"""A model with the attention techniques that its rows may name."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from suffice import native
from suffice.attention import ATTENTIONS, Attention, in_python
from suffice.attention.rule import (
    WHOLE,
    AttentionRule,
    Guarantee,
    after_approximate_prompt,
    guarantee,
)
from suffice.cache import fits_keys, types_of
from suffice.decoder.adapter import Adapter
from suffice.decoder.key_rounding import POSITIONS, KeyRounding, key_rounding
from suffice.decoder.native_model import NativeModel, Omitted
from suffice.decoder.stored_rounding import stored
from suffice.decoder.weights import DecoderWeights
from suffice.engine.config import Config
from suffice.engine.model_facts import ModelFacts
from suffice.errors import InputError, SufficeWarning
from suffice.progress import status


class ModelWithTechniques(ModelFacts):
    """The native model of a config, whose technique has number 0, and of others that are allowed.

    It says what each technique guarantees, and whose rows of keys and values others may share.
    `adapter` is the index of that of rows that name none, -1 for none. `stamp` is the fingerprint
    of the model's files, "" if it has none.
    """

    def __init__(
        self,
        config: Config,
        decoder: DecoderWeights,
        sample: Callable[[], list[int]],
        adapters: Sequence[Adapter] = (),
        stamp: str = "",
    ) -> None:
        super().__init__(config, decoder)
        self.stamp = stamp
        assert config.max_model_len is not None, "the config must be resolved"
        _check_python(config.technique)
        rules = self._rules(config)
        self._native = NativeModel(
            decoder,
            config.max_model_len,
            rules,
            config.levels(),
            Omitted(experts=config.experts.left_out, prompts=config.technique.unread_in_prompts),
            adapters,
        )
        names = [name for name, _ in config.adapters]
        self.adapter = -1 if config.adapter is None else names.index(config.adapter)
        self._guarantees = [self._guarantee(rules)]
        self._rules_of = [rules]  # of each technique, by its number
        self._sketched = config.technique.sketched or config.speculative_config.sketched
        self._based = config.technique.based or config.speculative_config.based
        self.sample = sample
        self.rounding: KeyRounding | None = None  # of keys in 4 bits, if a cache has any
        self._rounding: Any = None  # the same, for caches
        self._fit_rounding()

    def _rules(self, config: Config) -> list[list[AttentionRule | None]]:
        model = self.decoder.config
        return config.rules(len(model.cached), model.kv_heads)

    def _fit_rounding(self) -> None:
        """Fit how keys in 4-bit codes are rounded, if a cache has any.

        A model that has files is fitted once: see `stored_rounding`.
        """
        if not (self._based or fits_keys(types_of(self.config.kv_cache_dtype)[0])):
            return
        positions, sample = min(self.context, POSITIONS), self.sample()

        def fit() -> KeyRounding:
            with status("fitting the rounding of keys"):
                return key_rounding(self._native, self.decoder.config, positions, sample)

        options = self.config.quantization, self.config.experts.left_out, self.runs_as, native.isa()
        texts = [rope.text for rope in self.decoder.config.ropes]
        name = repr((self.stamp, options, positions, sample, *filter(None, texts)))
        self.rounding = stored(name, fit) if self.stamp else fit()
        self._rounding = self.rounding.native

    def use(self, rules: list[list[AttentionRule | None]]) -> None:
        """Replace the config's attention rules by others, [L][G]."""
        self._native.use(rules)
        self._guarantees[0] = self._guarantee(rules)
        self._rules_of[0] = rules

    def allow(self, config: Config) -> int:
        """Let rows name the attention of a config, which differs in nothing else; its number.

        No sequence may be open: those opened from now on keep what the technique needs.

        Raises:
            InputError: It is not for this model, or its prompts differ from the other requests'.
        """
        if config.calibration is not None and self.stamp:
            config.calibration.check(config.model, self.stamp, config.merge_adapter)
        config.check_model(self.decoder.config)
        if config.technique.unread_in_prompts != self.config.technique.unread_in_prompts:
            raise InputError(
                f"attention '{ATTENTIONS.name_of(config.attention)}': prompt="
                f"{config.technique.unread_in_prompts:g} must be that of all requests, "
                f"{self.config.technique.unread_in_prompts:g}: give it when the engine starts"
            )
        _check_python(config.technique)
        rules = self._rules(config)
        self._guarantees.append(self._guarantee(rules))
        self._rules_of.append(rules)
        self._sketched = self._sketched or config.technique.sketched
        self._based = self._based or config.technique.based
        if self.rounding is None:
            self._fit_rounding()
        return self._native.add_rules(rules)

    def _guarantee(self, rules: list[list[AttentionRule | None]]) -> Guarantee:
        """Return what is known of the rows that stay unread, among all that a text has had."""
        whole = not (self.config.softmax.coded or self.config.policy.chooses)
        return guarantee(rules) if whole else "none"

    def guarantee(self, technique: int = 0, *, prompt_read: bool = False) -> Guarantee:
        """Return what is known of the share of a softmax that decode steps leave unread.

        `prompt_read`: the tiles of its prompt read everything, as those of short prompts do.
        """
        found = self._guarantees[technique]
        return after_approximate_prompt(found) if self.tiled and not prompt_read else found

    @property
    def shares_prompts(self) -> bool:
        """Whether a prompt's rows serve other prompts that begin alike, bit for bit.

        Not if the policy chooses by the queries of the whole prompt, or evicts; nor if tiles of a
        prompt choose, since the last tile of a shorter one has other tokens.
        """
        return not (self.config.policy.evicts or self.config.policy.watches or self.tiled)

    @property
    def prompts_by_technique(self) -> bool:
        """Whether a prompt's rows depend on the request's technique."""
        return self.config.softmax.prefill

    def rows_depend_on(self, technique: int = 0) -> dict[str, str]:
        """Return all that the bits of a prompt's rows depend on, but for files and the code.

        They are the same in every process with the same texts here. Names are for users.
        """
        config, model = self.config, self.decoder.config
        found: dict[str, Any] = {
            "quantization": config.quantization,
            "experts": config.experts,
            "dtype": config.dtype,
            "weights in memory": self.runs_as,
            "kv_cache_dtype": config.kv_cache_dtype,
            "keys in 4 bits next to the cache": self._based,
            "instruction set": native.isa(),
            "rotation": [rope.text for rope in model.ropes],
        }
        if self.rounding is not None:
            fitted = b"".join(each.tobytes() for each in self.rounding)
            found["rounding of keys"] = hashlib.blake2b(fitted, digest_size=16).hexdigest()
        if self.prompts_by_technique:
            found["attention"] = config.softmax, config.levels(), self._rules_of[technique]
        return {name: str(value) for name, value in found.items()}

    def shares_answers(self, technique: int = 0) -> bool:
        """Whether rows of decode steps are those that a prompt would have, bit for bit."""
        native = not self._native.in_python(technique)
        return self.shares_prompts and native and self._guarantees[technique] == WHOLE


def _check_python(technique: Attention) -> None:
    """Say that a technique has no native code, if it has none, and check its exact setting."""
    if not in_python(technique):
        return
    from suffice.attention.python import check_limit

    name = ATTENTIONS.name_of(technique)
    check_limit(technique, name)
    warnings.warn(
        f"attention '{name}' has no native code: its reference runs in Python, which is slow",
        SufficeWarning,
        stacklevel=2,
    )
