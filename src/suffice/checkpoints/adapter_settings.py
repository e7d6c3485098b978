"""What `adapter_config.json` of a LoRA adapter says of its matrices, and what it may not say.

The file may be anybody's. Names of modules are compared as names, and regular expressions are not
run on them, but for patterns with a few wildcards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suffice.decoder.checks import check_number, check_size
from suffice.errors import InputError, brief, shown

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_ALPHA = 1e6  # of `lora_alpha`; published adapters have at most some hundreds

# Keys of `rank_pattern` and `alpha_pattern`: names of modules, with a few wildcards at most. Other
# regular expressions could take for ever on a name.
_PATTERN = re.compile(r"\^?([\w.-]|\\\.|\\d\+?|\.\*)+\$?")
_MOST_WILDCARDS = 2
_NAME, _INDEX = re.compile(r"\w+"), re.compile(r"[0-9]{1,6}")

# Beginnings of `init_lora_weights` for which PEFT changes the base weights when it loads.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")

# What is refused if it says anything but no, and why.
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "modules that are trained as a whole",
    "lora_bias": "biases of low-rank products",
    "trainable_token_indices": "trained embeddings of tokens",
    "target_parameters": "changes of stacked experts",
    "alora_invocation_tokens": "adapters that begin at a token",
    "layer_replication": "repeated layers",
    "megatron_config": "Megatron's layers",
    "use_qalora": "QALoRA",
    "arrow_config": "routed adapters",
}


@dataclass(frozen=True)
class AdapterSettings:
    """What `adapter_config.json` says of modules, and of scales: for all, and for some by pattern.

    `targets` and `excluded` are names of modules; a text is a regular expression. `layers` are the
    only ones that are changed (None: all), counted in the lists of `layer_lists` (none: any list).
    """

    targets: list[str] | str | None
    excluded: list[str] | str | None
    layers: list[int] | None
    layer_lists: list[str]
    rank: int
    alpha: float
    square_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    where: str

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str) -> AdapterSettings:
        """Return what a file says; errors begin with `where`.

        Raises:
            InputError: A kind of adapter that is not supported, or a value that none has.
        """
        if raw.get("peft_type", "LORA") != "LORA":
            kind = brief(raw["peft_type"])
            raise InputError(f"{where}: peft_type = {kind} is not supported; supported: 'LORA'")
        for field, what in _REFUSED.items():
            if raw.get(field):
                raise InputError(f"{where}: not supported: {what} ({field})")
        if raw.get("bias", "none") != "none":
            raise InputError(f"{where}: bias = {brief(raw['bias'])} is not supported; 'none' is")
        start = raw.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGE_THE_BASE):
            raise InputError(
                f"{where}: init_lora_weights = {brief(start)} is not supported: it changes the "
                "model's own weights; save the adapter converted to plain LoRA"
            )
        ranks, alphas = raw.get("rank_pattern") or {}, raw.get("alpha_pattern") or {}
        rank, alpha = raw.get("r", 8), raw.get("lora_alpha", 8)
        try:
            for each in (rank, *_values("rank_pattern", ranks)):
                check_size("r", each)
            for each in (alpha, *_values("alpha_pattern", alphas)):
                check_number("lora_alpha", each)
                if each > _MOST_ALPHA:
                    raise InputError(f"lora_alpha = {each:g} must be at most {_MOST_ALPHA:g}")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        layers, layer_lists = _layers(raw, where)
        return cls(
            _names(raw, "target_modules", where),
            _names(raw, "exclude_modules", where),
            layers,
            layer_lists,
            rank,
            alpha,
            bool(raw.get("use_rslora")),
            ranks,
            alphas,
            where,
        )

    def check_target(self, module: str) -> None:
        """Refuse a module of the file that its configuration does not change.

        A text is a regular expression, from a file of anybody: it is not run. The tensors say which
        modules are changed.

        Raises:
            InputError: The configuration names other modules, excludes this one, or its layer.
        """
        if isinstance(self.targets, list) and not _is_one_of(module, self.targets):
            raise self._contradicted(module, "target_modules", self.targets, "does not name")
        if isinstance(self.excluded, list) and _is_one_of(module, self.excluded):
            raise self._contradicted(module, "exclude_modules", self.excluded, "names")
        if self.layers is not None and _layer_of(module, self.layer_lists) not in self.layers:
            within = f" of {', '.join(self.layer_lists)}" if self.layer_lists else ""
            does = f"does not name{within}"
            raise self._contradicted(module, "layers_to_transform", self.layers, does)

    def _contradicted(self, module: str, field: str, value: Any, does: str) -> InputError:
        return InputError(
            f"{self.where}: {WEIGHTS} changes '{shown(module)}', which {field} = {brief(value)} "
            f"{does}"
        )

    def scale(self, module: str, rank: int) -> float:
        """Return the scale of a module, and require the rank that its matrices have.

        Raises:
            InputError: The configuration states another rank.
        """
        stated = _of_pattern(self.ranks, module, self.rank)
        if stated != rank:
            raise InputError(
                f"{self.where}: '{shown(module)}' has rank {rank}, but {CONFIG} says {stated}"
            )
        alpha: float = _of_pattern(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.square_root else rank)


def _names(raw: Mapping[str, Any], field: str, where: str) -> list[str] | str | None:
    """Return a field that has names of modules, or a text."""
    found = raw.get(field)
    listed = isinstance(found, list) and all(isinstance(each, str) for each in found)
    if not (found is None or listed or isinstance(found, str)):
        raise InputError(f"{where}: {field} = {brief(found)} must be a list of names, or a text")
    return found


def _is_one_of(module: str, names: Iterable[str]) -> bool:
    return any(module == each or module.endswith(f".{each}") for each in names)


def _layers(raw: Mapping[str, Any], where: str) -> tuple[list[int] | None, list[str]]:
    """Return the layers that alone are changed (None: all), and the lists that they are in."""
    layers, lists = raw.get("layers_to_transform"), raw.get("layers_pattern")
    if layers is None:  # without, PEFT refuses a pattern or has an empty one
        return None, []
    layers = [layers] if isinstance(layers, int) else layers
    if not (isinstance(layers, list) and all(type(each) is int for each in layers)):
        raise InputError(
            f"{where}: layers_to_transform = {brief(layers)} must be a number, or a list of them"
        )
    lists = [lists] if isinstance(lists, str) else lists or []
    named = isinstance(lists, list) and all(
        isinstance(each, str) and _NAME.fullmatch(each) for each in lists
    )
    if not named:
        raise InputError(f"{where}: layers_pattern = {brief(lists)} must be names of modules")
    return layers, lists


def _layer_of(module: str, lists: Sequence[str]) -> int | None:
    """Return the last index in a module's name, as PEFT does: that in one of the lists, if any."""
    parts = module.split(".")
    for at in reversed(range(2, len(parts) - 1)):
        if _INDEX.fullmatch(parts[at]) and (not lists or parts[at - 1] in lists):
            return int(parts[at])
    return None


def _values(field: str, pattern: Any) -> Iterable[Any]:
    if not isinstance(pattern, Mapping):
        raise InputError(f"{field} = {brief(pattern)} must be an object")
    for key in pattern:
        if not _PATTERN.fullmatch(key) or len(re.findall(r"[*+]", key)) > _MOST_WILDCARDS:
            raise InputError(
                f"{field}: {brief(key)} is not supported; names of modules are, with at most "
                f"{_MOST_WILDCARDS} of .* and \\d+"
            )
    return pattern.values()


def _of_pattern(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return the value of the first pattern that ends a module's name, as PEFT does."""
    return next((own for key, own in pattern.items() if _ends(key, module)), default)


def _ends(pattern: str, module: str) -> bool:
    return re.fullmatch(rf"(.*\.)?({pattern})", module) is not None
