"""LoRA adapters: folders of PEFT, each with low-rank changes of a model's matrices.

Where a matrix gives y = W x, an adapter gives y = W x + scale B (A x), with A [r, K] and B [N, r].
The scale is lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`. A folder has
`adapter_config.json` and `adapter_model.safetensors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from suffice.backends.cpu.packing import pack
from suffice.checkpoints.adapter_settings import CONFIG, WEIGHTS, AdapterSettings
from suffice.checkpoints.matching import check_finite, module_names, paired_views, views
from suffice.checkpoints.slices import View
from suffice.checkpoints.stored_tensors import StoredTensors
from suffice.decoder.adapter import Adapter
from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import ARCHITECTURES, Family
from suffice.decoder.names import shapes
from suffice.errors import InputError, shown
from suffice.quant.none import NoQuant

_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")
_ADAPTED = ("q", "k", "v", "o", "gate", "up", "down", "q_low", "kv")  # that adapters may change
_MOST_RANK, _MOST = 1024, 1e30  # the latter of an entry


def read_adapters(
    folders: Iterable[tuple[str, str]], config: DecoderConfig, dtype: str
) -> list[Adapter]:
    """Read adapters, given as names with their folders, for a model; matrices have type `dtype`.

    Raises:
        InputError: A folder that is no adapter, of another model, or of a kind that is not
            supported.
    """
    quant, found = NoQuant(dtype), []
    for name, folder in folders:
        pairs = {
            canonical: (pack(quant, down, None, np.empty), pack(quant, up, None, np.empty))
            for canonical, (down, up) in read_matrices(f"adapter '{name}'", folder, config).items()
        }
        found.append(Adapter(name, pairs))
    return found


def read_matrices(
    where: str, given: str, config: DecoderConfig
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return A and scale times B of a folder, float32, by canonical name.

    Errors begin with `where`.

    Raises:
        InputError: As `read_adapters`.
    """
    from suffice.checkpoints.formats.hf_folder import read_json

    if not config.adaptable:
        raise InputError(
            f"{where}: the model's GGUF file has factors in its weights that an adapter lacks: "
            "give the adapter to the model's folder"
        )
    folder = Path(given).expanduser()
    if not (folder / CONFIG).is_file():
        raise InputError(f"{where}: {folder} has no {CONFIG}, so it is no PEFT folder")
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"{where}: {folder} has no {WEIGHTS}")
    settings = AdapterSettings.read(read_json(folder / CONFIG), where)
    tensors = StoredTensors(folder / WEIGHTS)
    modules = _modules(tensors, where)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    wanted_shapes = shapes(config)
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
        scale = settings.scale(module, len(down))
        if not np.abs(up).max(initial=0) * scale < _MOST:
            raise InputError(f"{where}: lora_B of '{shown(module)}' has numbers that are too large")
        found[canonical] = down, np.ascontiguousarray(up * np.float32(scale))
    return found


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
    if config.paired:
        cut |= paired_views(config, names)
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
