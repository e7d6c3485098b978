"""Parsers of option values: one function for each kind of value.

Each takes the option's name and the given value, returns the value for `Config` and raises
`InputError`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cache import KV_DTYPES, types_of
from suffice.errors import InputError, OptionError, brief, shown, unknown
from suffice.registry import Table
from suffice.speculate import SPECULATORS, Speculator

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.quant import Quant

DTYPES = ("auto", "float32", "bfloat16")
_LLAMA_CPP = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # its names of types
_MOST = 2**63 - 1  # of whole numbers
_UNITS = ("", "K", "M", "G", "T")
_PART_OF_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_CENTURY = 100 * 366 * 86_400.0  # seconds
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)

Parser = Callable[[str, Any], Any]


def model_name(name: str, value: Any) -> str:
    """Return a model's name."""
    if not str(value):
        raise InputError(f"{name}='': must be a known name, a directory, a hub id or a .gguf file")
    return str(value)


def text(name: str, value: Any) -> str | None:
    """Return a text; None stays None."""
    return None if value is None else str(value)


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise unknown(name, str(value), allowed)
    return str(value)


def dtype(name: str, value: Any) -> str:
    """Return a type of weights."""
    return _choice(name, _LLAMA_CPP.get(str(value), value), DTYPES)


def kv_names(name: str, text: str) -> str:
    """Return our names of the types of keys and values; `text` may have llama.cpp's.

    Raises:
        InputError: A type of llama.cpp that has no equal here.
    """
    if text == "q8_0":
        raise InputError(
            f"{name} q8_0: there is no q8_0 (a scale for every 32 values) here; the nearest is "
            "int8 (a scale for every row)"
        )
    return "/".join(_LLAMA_CPP.get(part, part) for part in text.split("/"))


def kv_dtype(name: str, value: Any) -> str:
    """Return the types of keys and values: one name, or "KEYS/VALUES"."""
    text = kv_names(name, str(value))
    if text == "auto":
        return text
    types = types_of(text)
    if "" in types or "/" in types[1]:
        raise OptionError(name, text, "must be a type, or KEYS/VALUES such as int8/kmeans4")
    for dtype in types:
        _choice(name, dtype, KV_DTYPES if "/" in text else ("auto", *KV_DTYPES))
    return "/".join(dict.fromkeys(types))


def whole(low: int, none: bool = False) -> Parser:
    """Return a parser of whole numbers of at least `low`, and of None if `none`."""
    must = f"must be a whole number of at least {low}"

    def parse(name: str, value: Any) -> int | None:
        if value is None and none:
            return None
        number = str(value).strip()
        digits = not isinstance(value, bool) and number.isascii() and number.isdigit()
        if not digits or int(number) < low:
            raise OptionError(name, value, must, ", or None" if none else "")
        if int(number) > _MOST:
            raise OptionError(name, value, f"must be at most {_MOST}")
        return int(number)

    return parse


def threads(name: str, value: Any) -> int | None:
    """Return a number of threads, at most the cores of this process; None stays None."""
    count: int | None = whole(1, none=True)(name, value)
    if count is None:
        return None
    from suffice import native

    if count > native.cores():
        raise OptionError(
            name, count, f"must not be more than {native.cores()}, the cores available"
        )
    return count


def size(name: str, value: Any) -> int | None:
    """Return bytes, from a number or a text such as 4GiB; None stays None."""
    if value is None:
        return None
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    found = int(match[1]) * 1024 ** _UNITS.index(match[2].upper()) if match else 0
    if found < 1:
        raise OptionError(
            name, value, "must be a positive number of bytes, such as 4GiB", ", or None"
        )
    if found >= 2**64:
        raise OptionError(name, value, "must be less than 2^64 bytes", "; None sets no limit")
    return found


def seconds(name: str, value: Any) -> float:
    """Return a time such as 300, "5m" or "1h30m" in seconds; less than 0 is for ever.

    What is longer than a century is for ever, too.
    """
    text = str(value).strip()
    sign, text = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    text = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
    if isinstance(value, bool) or not text or _PART_OF_TIME.sub("", text):
        raise OptionError(name, value, "must be seconds, or a time such as 5m")
    parts = _PART_OF_TIME.findall(text)
    found = sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return found if found < _CENTURY else -1.0


def age(name: str, value: Any) -> float | None:
    """Return a time in seconds after which something goes; None, and a century, is never."""
    if value is None:
        return None
    if str(value).strip().startswith("-"):
        must = "must be seconds, or a time such as 30d, of at least 0"
        raise OptionError(name, value, must, ", or None")
    found = seconds(name, value)
    return found if found >= 0 else None


def path(name: str, value: Any) -> Path | None:
    """Return a path; None stays None."""
    if value is None:
        return None
    if not str(value):
        raise OptionError(name, value, "must be a path")
    return Path(value).expanduser()


def yes_or_no(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise OptionError(name, value, "must be True or False")
    return value


def of_table(table: Table) -> Parser:
    """Return a parser of techniques of a table, given as objects or by name."""
    return table.take


def quant_of(name: str, value: Any) -> Any:
    """Return a quantization method, given as an object or by name; None stays None."""
    if value is None:
        return None
    from suffice.quant import QUANTS

    return QUANTS.take(name, value)


def stored_weights(given: Quant | None, asked: str, dtype: str) -> Quant:
    """Return the method that stores weights.

    Without a `given` one it is the file's own, unless a type other than auto is `asked` for, which
    all weights then have. Weights that the file's own method keeps in float have `dtype`.
    """
    from suffice.quant.file import AsStored
    from suffice.quant.none import NoQuant

    found = given or (AsStored() if asked == "auto" else NoQuant(asked))
    if isinstance(found, AsStored) and found.dtype is None:
        return replace(found, dtype=dtype)
    return found


def quant_name(quant: Quant | None) -> str:
    """Return the registered name of a quantization method."""
    from suffice.quant import QUANTS

    return QUANTS.name_of(quant)


def speculator(name: str, value: Any) -> Speculator:
    """Build a speculator from vLLM's form, {"method": "name", "option": value}, or from a name."""
    if value is None:
        value = "none"
    if not isinstance(value, Mapping):
        found: Speculator = SPECULATORS.take(name, value)
        return found
    options = dict(value)
    method = options.pop("method", None)
    if not isinstance(method, str):
        known = ", ".join(SPECULATORS.names())
        raise InputError(f"{name}: needs 'method'. Known: {known}")
    made: Speculator = SPECULATORS.make(method, options)
    return made


def named_folders(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    """Return names with their folders, given as a mapping, as "NAME=FOLDER", or as a list."""
    if isinstance(value, Mapping):
        pairs = [(each, str(folder)) for each, folder in value.items()]
    elif isinstance(value, str) or not isinstance(value, Sequence):
        pairs = [_named_folder(name, value)]
    else:
        pairs = [_named_folder(name, each) for each in value]
    for each, folder in pairs:
        if not isinstance(each, str) or not each or not folder:
            raise InputError(f"{name}: must be NAME=FOLDER, not {brief(each)}={brief(folder)}")
    twice = [each for each, count in Counter(each for each, _ in pairs).items() if count > 1]
    if twice:
        raise InputError(f"{name}: '{shown(twice[0])}' is given twice")
    return tuple(pairs)


def _named_folder(name: str, value: Any) -> tuple[Any, str]:
    if isinstance(value, list | tuple) and len(value) == 2:  # parsed before
        return value[0], str(value[1])
    if not isinstance(value, str) or "=" not in value:
        raise InputError(f"{name}: must be NAME=FOLDER, not {brief(value)}")
    own, _, folder = value.partition("=")
    return own, folder


def calibration(name: str, value: Any) -> Calibration | None:
    """Return a calibration, given as an object or as its file; None stays None."""
    if value is None:
        return None
    from suffice.attention.calibration import Calibration, read

    return value if isinstance(value, Calibration) else read(value)
