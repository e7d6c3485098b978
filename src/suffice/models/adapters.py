"""LoRA adapters: folders of PEFT, each with low-rank changes of a model's matrices.

Where a matrix gives y = W x, an adapter gives y = W x + scale B (A x), with A [r, K] and B [N, r].
The scale is lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`. A folder has
`adapter_config.json` and `adapter_model.safetensors`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from suffice.backends.cpu.packing import pack
from suffice.errors import InputError, brief, shown
from suffice.models.config import DecoderConfig, check_number, check_size
from suffice.models.families import ARCHITECTURES, Family
from suffice.models.slices import View
from suffice.models.stored_tensors import StoredTensors
from suffice.models.weights import check_finite, module_names, shapes, views
from suffice.quant import PackedLinear
from suffice.quant.none import NoQuant

__all__ = ["Adapter", "read_adapters"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")
_ADAPTED = ("q", "k", "v", "o", "gate", "up", "down")  # matrices that adapters may change
_MOST_RANK = 1024

# Keys of `rank_pattern` and `alpha_pattern`: names of modules, with a few wildcards at most. Other
# regular expressions could take for ever on a name.
_PATTERN = re.compile(r"\^?([\w.-]|\\\.|\\d\+?|\.\*)+\$?")
_MOST_WILDCARDS = 2

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


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter's packed matrices, A and scale times B, by canonical name (`layers.0.q`)."""

    name: str
    matrices: Mapping[str, tuple[PackedLinear, PackedLinear]]

    @property
    def bytes(self) -> int:
        """Bytes of all its matrices."""
        return sum(each.bytes for both in self.matrices.values() for each in both)


def read_adapters(
    folders: Iterable[tuple[str, str]], config: DecoderConfig, dtype: str
) -> list[Adapter]:
    """Read adapters, given as names with their folders, for a model; matrices have type `dtype`.

    Raises:
        InputError: A folder that is no adapter, of another model, or of a kind that is not
            supported.
    """
    return [_read(name, Path(folder).expanduser(), config, dtype) for name, folder in folders]


def _read(name: str, folder: Path, config: DecoderConfig, dtype: str) -> Adapter:
    from suffice.models.formats.hf_folder import read_json

    if not (folder / CONFIG).is_file():
        raise InputError(f"adapter '{name}': {folder} has no {CONFIG}, so it is no PEFT folder")
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"adapter '{name}': {folder} has no {WEIGHTS}")
    where = f"adapter '{name}'"
    settings = _Settings.read(read_json(folder / CONFIG), where)
    tensors = StoredTensors(folder / WEIGHTS)
    modules = _modules(tensors, where)
    pairs: dict[str, tuple[PackedLinear, PackedLinear]] = {}
    quant, wanted_shapes = NoQuant(dtype), shapes(config)
    for module in modules:
        settings.check_target(module)
    for canonical, module, rows in _targets(config, list(modules), where):
        down, up = (_float(tensors, modules[module][part]) for part in "AB")
        up = rows(up)
        wanted = wanted_shapes[canonical]
        if down.shape[1:] != wanted[1:] or up.shape != (wanted[0], len(down)):
            raise InputError(
                f"{where}: the matrices of '{shown(module)}' are {list(down.shape)} and "
                f"{list(up.shape)}, which do not fit the model's {list(wanted)}"
            )
        if not 1 <= len(down) <= _MOST_RANK:
            raise InputError(f"{where}: rank {len(down)} is not supported; 1 to {_MOST_RANK} are")
        up = np.ascontiguousarray(up * np.float32(settings.scale(module, len(down))))
        pairs[canonical] = pack(quant, down, None, np.empty), pack(quant, up, None, np.empty)
    return Adapter(name, pairs)


@dataclass(frozen=True)
class _Settings:
    """What `adapter_config.json` says of scales: for all modules, and for those of patterns."""

    targets: list[str] | str | None
    rank: int
    alpha: float
    square_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    where: str

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str) -> _Settings:
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
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        targets = raw.get("target_modules")
        listed = isinstance(targets, list) and all(isinstance(each, str) for each in targets)
        if not (targets is None or listed or isinstance(targets, str)):
            raise InputError(
                f"{where}: target_modules = {brief(targets)} must be a list of names, or a text"
            )
        return cls(targets, rank, alpha, bool(raw.get("use_rslora")), ranks, alphas, where)

    def check_target(self, module: str) -> None:
        """Refuse a module that a list of `target_modules` does not name.

        A text is a regular expression, from a file of anybody: it is not run. The tensors say which
        modules are changed.

        Raises:
            InputError: It does not.
        """
        own = self.targets
        if own is None or isinstance(own, str):
            return
        if not any(module == each or module.endswith(f".{each}") for each in own):
            raise InputError(
                f"{self.where}: {WEIGHTS} changes '{shown(module)}', which target_modules = "
                f"{brief(own)} does not name"
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


def _modules(tensors: StoredTensors, where: str) -> dict[str, dict[str, str]]:
    """Return the stored names of A and B of each module.

    Raises:
        InputError: Tensors of another kind, or one of the two is missing.
    """
    found: dict[str, dict[str, str]] = {}
    for name in tensors.names:
        match = _PART.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            raise InputError(
                f"{where}: the tensor '{shown(name)}' is not supported; lora_A and lora_B of "
                "matrices of attention and MLPs are"
            )
        found.setdefault(match["module"], {})[match["part"]] = name
    for module, parts in found.items():
        if len(parts) != 2:
            raise InputError(f"{where}: '{shown(module)}' has no lora_A or no lora_B")
    if not found:
        raise InputError(f"{where}: it changes no matrix")
    return found


def _float(tensors: StoredTensors, name: str) -> np.ndarray:
    found = tensors.load(name)
    if found.ndim != 2 or found.dtype.name not in ("float32", "float16", "bfloat16"):
        raise InputError(f"{tensors.path}: '{shown(name)}' is no matrix of floats")
    check_finite(tensors.path, name, found)
    return np.ascontiguousarray(found.astype(np.float32))


@dataclass(frozen=True)
class _Rows:
    """Takes the rows of a matrix from those of a module, which has `count`; None: all are its."""

    count: int
    view: View | None

    def __call__(self, whole: np.ndarray) -> np.ndarray:
        if self.view is None or len(whole) != self.count:
            return whole
        return np.asarray(self.view.of(whole))


def _targets(
    config: DecoderConfig, modules: Sequence[str], where: str
) -> Iterator[tuple[str, str, _Rows]]:
    """Yield each matrix that modules change: its canonical name, its module, and its rows of B.

    The modules have the names that Hugging Face's classes give them, whatever the model's file is.

    Raises:
        InputError: No family has modules of these names with the model's matrices.
    """
    known: dict[str, list[tuple[str, _Rows]]] = {}
    left = set(modules)
    for name in ARCHITECTURES.names():
        family: Any = ARCHITECTURES.load(name)
        own = _of_family(family, config)
        if left <= own.keys():
            known = own
            break
        if len(own.keys() & left) > len(known.keys() & left):
            known = own
    if missing := sorted(left - known.keys()):
        raise InputError(
            f"{where}: it changes '{shown(missing[0])}', which is no matrix of attention or of a "
            "dense MLP of this model"
        )
    for module in modules:
        for canonical, rows in known[module]:
            yield canonical, module, rows


def _of_family(family: Family, config: DecoderConfig) -> dict[str, list[tuple[str, _Rows]]]:
    """Return the matrices that each module of a family holds, if it has all that a model needs."""
    names = module_names(config, family.weights, _ADAPTED)
    if names is None:
        return {}
    wanted = shapes(config)
    cut = views(config, family.weights, names)
    found: dict[str, list[tuple[str, _Rows]]] = {}
    stored: dict[str, int] = {}
    for canonical, module in names.items():
        stored[module] = stored.get(module, 0) + wanted[canonical][0]
    for canonical, module in names.items():
        view = cut.get(canonical)
        if view is not None:  # B is [N, r] whether the module's own matrix is transposed or not
            view = replace(view, transposed=False)
        found.setdefault(module, []).append((canonical, _Rows(stored[module], view)))
    return found
