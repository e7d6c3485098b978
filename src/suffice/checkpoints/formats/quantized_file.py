"""Quantized models: one safetensors file with everything decoding needs, by `suffice quantize`.

The header's metadata has one entry, `suffice`, a JSON object:

    schema      3
    model       name and fingerprint of the original model
    method      such as kmeans:bits=4,act_bits=16
    text        the calibration text: name, sha256, windows, window
    unreached   of mixtures of experts: by layer, the experts that the text did not reach
    config      the fields of `DecoderConfig`
    pooling     of a model whose files say how it embeds: the fields of `Pooling`
    tokenizer   special tokens, chat_template and end tokens
    matrices    for each: rows, columns, type; in codes also layout (the fields of `CodeLayout`),
                rotation, most, share (of outliers, null without a codebook of inputs) and loss, the
                share of its outputs' mean square that is lost

Tensors of a matrix NAME are NAME.data (see `quant.panels` and `quant.code_layout`), and where it
has them NAME.scale, NAME.bias, NAME.levels (see `quant.packed_codes`) and NAME.inputs, the codebook
of its inputs. A vector has its canonical name (see `decoder.names`). `tokenizer` uint8 is the
tokenizer's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suffice.backends.cpu.linear import native_linear
from suffice.checkpoints.formats.quantized_config import read_config
from suffice.checkpoints.matching import check_finite
from suffice.checkpoints.storage import StoredMatrix
from suffice.checkpoints.stored_tensors import StoredTensors
from suffice.decoder.config import DecoderConfig
from suffice.decoder.names import is_linear, shapes
from suffice.errors import InputError
from suffice.paths import write_whole
from suffice.quant import PackedLinear
from suffice.quant.activations import Site
from suffice.quant.code_layout import CodeLayout
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.panels import DTYPES
from suffice.quant.sites import SITES

SCHEMA = 3
_KEY = "suffice"
Weights = Mapping[str, PackedLinear | np.ndarray]


@dataclass(frozen=True)
class Quantized:
    """An opened file: its header and its weights."""

    path: Path
    facts: dict[str, Any]
    config: DecoderConfig
    weights: dict[str, PackedLinear | np.ndarray]

    @property
    def dtype(self) -> str:
        """The model's type for the rest of the engine."""
        return "bfloat16"

    @property
    def stored_as(self) -> str:
        """The method that the matrices are stored by, such as kmeans:bits=4,act_bits=8."""
        return str(self.facts["method"])

    @property
    def matrices(self) -> list[StoredMatrix]:
        """Storage of each matrix."""
        return [
            StoredMatrix(name, _type(each), each.bytes, each.rows * each.columns)
            for name, each in self.weights.items()
            if isinstance(each, PackedLinear)
        ]

    @property
    def bits_per_weight(self) -> float:
        """Bits for each entry of the matrices, their scales and codebooks included."""
        return 8 * sum(m.bytes for m in self.matrices) / sum(m.entries for m in self.matrices)


def _type(weight: PackedLinear) -> str:
    if isinstance(weight, PackedCodes):
        return f"{weight.layout.bits}-bit codes"
    return weight.dtype


def write_part(path: Path, weights: Weights, facts: dict[str, Any], **more: np.ndarray) -> None:
    """Write weights and facts; a reader of the path sees the old content or all of the new.

    Raises:
        InputError: The file cannot be written.
    """
    from safetensors import SafetensorError  # files are read without it
    from safetensors.numpy import save_file

    tensors: dict[str, np.ndarray] = dict(more)
    matrices: dict[str, Any] = {}
    for name, weight in weights.items():
        if isinstance(weight, PackedLinear):
            matrices[name] = _described(weight) | facts.get("losses", {}).get(name, {})
            tensors |= {f"{name}.{part}": each for part, each in _parts(weight).items()}
        else:
            tensors[name] = np.ascontiguousarray(weight)
    stored = {key: value for key, value in facts.items() if key != "losses"}
    header = json.dumps(stored | {"schema": SCHEMA, "matrices": matrices})
    try:
        with write_whole(path) as part:
            save_file(tensors, part, metadata={_KEY: header})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be written: {' '.join(str(error).split())}") from None


def read_part(path: Path) -> tuple[dict[str, Any], dict[str, PackedLinear | np.ndarray]]:
    """Return the facts and weights of a file, `tokenizer` among them.

    Raises:
        InputError: It cannot be read, is no such file, has another schema, or is damaged.
    """
    facts, tensors = _read(path)
    weights: dict[str, PackedLinear | np.ndarray] = {}
    try:
        for name, described in facts["matrices"].items():
            weights[name] = _matrix(name, described, tensors)
        weights |= tensors
    except (KeyError, TypeError, AttributeError, ValueError, InputError) as error:
        raise InputError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    for name, weight in weights.items():
        for part, tensor in _floats(weight).items():
            check_finite(path, f"{name}.{part}" if part else name, tensor)
    return facts, weights


def open_quantized(path: Path) -> Quantized:
    """Open a file of `suffice quantize` and check it against its configuration.

    Raises:
        InputError: It cannot be read, is no such file, has another schema, or is damaged.
    """
    facts, weights = read_part(path)
    if "config" not in facts:
        raise InputError(f"{path} is a part of an unfinished `suffice quantize`: run that again")
    _check_facts(path, facts)
    try:
        config = read_config(facts["config"])
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(f"{path} is damaged: its configuration lacks or has {error}") from None
    vectors = {name: weight for name, weight in weights.items() if name != "tokenizer"}
    for name, shape in shapes(config).items():
        if is_linear(name.removesuffix(".bias")) and name.endswith(".bias"):
            continue  # a matrix has its own bias
        found = vectors.get(name)
        size = (found.rows, found.columns) if isinstance(found, PackedLinear) else None
        if (size or tuple(getattr(found, "shape", ()))) != shape:
            raise InputError(f"{path} is damaged: '{name}' is missing or not {list(shape)}")
    _check_sites(path, vectors, len(config.layers))
    return Quantized(path, facts, config, vectors)


def stored_tokenizer(path: Path) -> tuple[dict[str, Any], str]:
    """Return the stored tokenizer: facts, and its JSON.

    Raises:
        InputError: The file cannot be read, or has none.
    """
    facts, tensors = _read(path, only="tokenizer")
    if "tokenizer" not in tensors or "tokenizer" not in facts:
        raise InputError(f"{path} is damaged: it has no tokenizer")
    try:
        return facts["tokenizer"], tensors["tokenizer"].tobytes().decode()
    except UnicodeDecodeError:
        raise InputError(f"{path} is damaged: its tokenizer is not text (UTF-8)") from None


def _read(path: Path, only: str | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the facts and tensors of a file, all of them or one."""
    file = StoredTensors(path)
    facts = _facts(path, file.metadata.get(_KEY))
    return facts, {name: file.load(name) for name in file.names if only in (None, name)}


def _facts(path: Path, header: str | None) -> dict[str, Any]:
    if header is None:
        raise InputError(f"{path} is not a model of `suffice quantize`: its header lacks 'suffice'")
    try:
        facts = json.loads(header, parse_constant=_refused)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise InputError(f"{path} is damaged: its header is not a JSON object")
    if facts.get("schema") != SCHEMA:
        raise InputError(
            f"{path} has schema {facts.get('schema')!r}; {SCHEMA} is known: quantize again"
        )
    return facts


def _refused(constant: str) -> float:
    """Refuse NaN and Infinity, which Python accepts and JSON does not have."""
    raise ValueError(f"{constant} is not a number")


def _check_facts(path: Path, facts: dict[str, Any]) -> None:
    """Refuse a whole file whose header lacks facts."""
    wanted: list[tuple[Any, str, tuple[type, ...]]] = [(facts, "method", (str,))]
    wanted += [(facts.get("model"), name, (str,)) for name in ("name", "hash")]
    wanted += [(facts.get("text"), name, (int,)) for name in ("windows", "window")]
    wanted.append((facts.get("text"), "name", (str,)))
    for matrix in facts["matrices"].values():
        if "loss" in matrix:
            wanted.append((matrix, "loss", (int, float)))
    for told, name, kinds in wanted:
        if not isinstance(told, dict) or not isinstance(told.get(name), kinds):
            raise InputError(f"{path} is damaged: its header lacks '{name}', or it has no value")


def _check_sites(path: Path, weights: Weights, layers: int) -> None:
    """Refuse matrices that share an input but take it in different forms."""
    for layer in range(layers):
        for names in SITES.values():
            own = [weights.get(f"layers.{layer}.{name}") for name in names]
            ways = {_taken(w) for w in own if isinstance(w, PackedLinear)}
            if len(ways) > 1:
                raise InputError(
                    f"{path} is damaged: {', '.join(names)} of layer {layer} are stored differently"
                )


def _taken(weight: PackedLinear) -> tuple[Any, ...]:
    """Return all properties that determine the form in which a matrix takes its inputs."""
    if not isinstance(weight, PackedCodes):
        return (weight.dtype,)
    site = weight.site
    levels = site and (tuple(site.levels.tolist()), site.share, site.thresholds, site.group)
    return weight.dtype, weight.rotation, weight.most, levels


def _described(weight: PackedLinear) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rows": weight.rows,
        "columns": weight.columns,
        "type": weight.dtype,
    }
    if isinstance(weight, PackedCodes):
        found["layout"] = asdict(weight.layout)
        found |= {"rotation": weight.rotation, "most": weight.most}
        found["share"] = None if weight.site is None else weight.site.share
        found["input_group"] = None if weight.site is None else weight.site.group
        found["thresholds"] = None if weight.site is None else weight.site.thresholds
    return found


def _parts(weight: PackedLinear) -> dict[str, np.ndarray]:
    found = {"data": weight.data, "scale": weight.scale, "bias": weight.bias}
    if isinstance(weight, PackedCodes):
        found["levels"] = weight.levels
        found["inputs"] = None if weight.site is None else weight.site.levels
    return {name: np.ascontiguousarray(part) for name, part in found.items() if part is not None}


def _floats(weight: PackedLinear | np.ndarray) -> dict[str, np.ndarray]:
    """Return all floating-point tensors of a weight, by the name of the part."""
    parts = _parts(weight) if isinstance(weight, PackedLinear) else {"": weight}
    if isinstance(weight, PackedCodes):
        parts["data"] = weight.stored_floats
    return {n: each for n, each in parts.items() if not np.issubdtype(each.dtype, np.integer)}


def _matrix(name: str, described: dict[str, Any], tensors: dict[str, np.ndarray]) -> PackedLinear:
    """Take a matrix's tensors out of those of a file.

    Raises:
        KeyError, ValueError: A tensor is missing or does not fit.
    """
    data = tensors.pop(f"{name}.data")
    scale, bias, levels, inputs = (
        tensors.pop(f"{name}.{part}", None) for part in ("scale", "bias", "levels", "inputs")
    )
    rows, columns = int(described["rows"]), int(described["columns"])
    packed: PackedLinear
    if described["type"] == "codes":
        share, input_group = described["share"], described.get("input_group")
        thresholds = described.get("thresholds")
        alone = share is None and (input_group or thresholds)
        contradicted = (share is None) != (inputs is None) or alone
        if levels is None or levels.ndim != 1 or contradicted:
            raise ValueError(f"'{name}' has levels that contradict its header")
        site = None if inputs is None else _site(inputs, share, thresholds, input_group)
        try:
            layout = CodeLayout(**described["layout"])
        except TypeError:
            raise ValueError(f"'{name}' has a layout that is not known") from None
        packed = PackedCodes(
            data,
            rows,
            columns,
            bias=bias,
            layout=layout,
            levels=levels,
            rotation=int(described["rotation"]),
            most=int(described["most"]),
            site=site,
        )
    else:
        if data.dtype != DTYPES[described["type"]]:
            raise ValueError(f"'{name}' is of type {data.dtype}")
        packed = PackedLinear(data, rows, columns, scale, bias)
    try:
        native_linear(packed)  # the core checks that the parts fit
    except TypeError:
        raise ValueError(f"'{name}' has a tensor or a number of the wrong type") from None
    return packed


def _site(inputs: np.ndarray, share: Any, thresholds: Any, group: Any) -> Site:
    """Return the activation site that a file's entries describe.

    Raises:
        TypeError, ValueError: An entry has another type.
    """
    if thresholds is None:
        return Site(inputs, float(share), None, group)
    low, high = thresholds
    return Site(inputs, float(share), (float(low), float(high)), group)
