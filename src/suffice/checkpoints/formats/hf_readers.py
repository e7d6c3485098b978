"""Which program quantized a folder, as its `config.json` says, and what reads such weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from suffice.checkpoints.formats.hf_awq import AWQ
from suffice.checkpoints.formats.hf_awq import BITS as AWQ_BITS
from suffice.checkpoints.formats.hf_compressed import BITS as INTEGER_BITS
from suffice.checkpoints.formats.hf_compressed import Compressed, Integers
from suffice.checkpoints.formats.hf_float8 import Float8
from suffice.checkpoints.formats.hf_gptq import BITS as GPTQ_BITS
from suffice.checkpoints.formats.hf_gptq import GPTQ
from suffice.checkpoints.formats.hf_mxfp4 import MXFP4
from suffice.checkpoints.formats.hf_parts import Reader
from suffice.decoder.ignored import quantized_by
from suffice.errors import InputError, brief

_ADVICE = (
    "give the model's float weights, and --quant int8 or a file of `suffice quantize` to make it "
    "small; or a GGUF file of the model"
)
_DENSE = (None, "dense")


def reader_of(raw: Mapping[str, Any], where: str) -> Reader:
    """Return what reads the weights of a folder that another program has quantized.

    Raises:
        InputError: No such program or setting is supported; the message gives alternatives.
    """
    said = quantized_by(raw)
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    if method is None and isinstance(said, Mapping) and "config_groups" in said:
        method = "compressed-tensors"
    if not isinstance(said, Mapping) or not isinstance(method, str) or method not in _READERS:
        name = brief(method)[1:-1] if isinstance(method, str) and method else "another program"
        raise InputError(
            f"{where}: its weights are quantized by {name}, which is not supported "
            f"(supported: {', '.join(_READERS)}): {_ADVICE}"
        )
    return _READERS[method](_Settings(said, f"{where}: {method}"))


class _Settings:
    """The values of a `quantization_config`, or of an object in it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self._where = values, where

    def get(self, *names: str) -> Any:
        """Return the value of the first name that is there; None of none."""
        return next((self._values[name] for name in names if name in self._values), None)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield all names and values."""
        yield from self._values.items()

    def only(self, name: str, allowed: Sequence[Any], *, default: Any = None) -> Any:
        """Return a value that must be one of a few; `default` if it is missing.

        Raises:
            InputError: It is another one.
        """
        value = self._values.get(name, default)
        if not any(
            value is each or (value == each and type(value) is type(each)) for each in allowed
        ):
            listed = ", ".join(str(each) for each in allowed if each is not None)
            raise self.error(f"{name} = {brief(value)} is not supported; supported: {listed}")
        return value

    def group(self, *names: str) -> int | None:
        """Return the columns of a group; None: all of a row.

        Raises:
            InputError: It is no number of columns.
        """
        value = self.get(*names)
        if value is None or value == -1:
            return None
        if type(value) is not int or value < 1:
            raise self.error(
                f"{names[0]} = {brief(value)} must be a whole number of at least 1, or -1"
            )
        return value

    def block(self, name: str) -> tuple[int, int] | None:
        """Return the rows and columns of a block; None of null.

        Raises:
            InputError: It is no pair of sizes.
        """
        value = self.get(name)
        if value is None:
            return None
        sizes = value if isinstance(value, list) else []
        if len(sizes) != 2 or not all(type(each) is int and each >= 1 for each in sizes):
            raise self.error(
                f"{name} = {brief(value)} must be two whole numbers, such as [128, 128]"
            )
        return sizes[0], sizes[1]

    def inner(self, name: str, value: Any) -> _Settings:
        """Return the settings of an object.

        Raises:
            InputError: It is no object.
        """
        if not isinstance(value, Mapping):
            raise self.error(f"{name} = {brief(value)} must be an object")
        return _Settings(value, f"{self._where}: {name}")

    def error(self, reason: str) -> InputError:
        """Build the error for a setting."""
        return InputError(f"{self._where}: {reason}")


def _gptq(said: _Settings) -> GPTQ:
    form = said.only("checkpoint_format", ("gptq", "gptq_v2"), default="gptq")
    said.only("is_marlin_format", (False, None))
    return GPTQ(
        said.only("bits", GPTQ_BITS),
        said.group("group_size"),
        shift=1 if form == "gptq" else 0,
        overrides=bool(said.get("dynamic")),
    )


def _awq(said: _Settings) -> AWQ:
    said.only("version", ("gemm", "GEMM"), default="gemm")
    said.only("zero_point", (True,), default=True)
    bits = said.get("bits", "w_bit")
    if bits != AWQ_BITS:
        raise said.error(f"bits = {brief(bits)} is not supported; supported: {AWQ_BITS}")
    return AWQ(said.group("group_size", "q_group_size"))


def _float8(said: _Settings) -> Float8:
    said.only("fmt", ("e4m3", "float8_e4m3fn"), default="e4m3")
    return Float8(said.block("weight_block_size"))


def _compressed(said: _Settings) -> Compressed:
    sparsity = said.get("sparsity_config")
    if sparsity:
        said.inner("sparsity_config", sparsity).only("format", _DENSE)
    groups = said.inner("config_groups", said.get("config_groups"))
    integers: list[Integers] = []
    floats: set[Float8] = set()
    for name, group in groups.items():
        weights = groups.inner(name, group).get("weights")
        if weights is not None:
            scheme = _scheme(groups.inner(f"{name}.weights", weights))
            if isinstance(scheme, Float8):
                floats.add(scheme)
            else:
                integers.append(scheme)
    if len(floats) > 1:
        raise said.error("8-bit floats with scales for several sizes of blocks are not supported")
    return Compressed(tuple(integers), floats.pop() if floats else None)


def _scheme(weights: _Settings) -> Integers | Float8:
    """Return the scheme of a group's weights."""
    kind = weights.only("type", ("int", "float"), default="int")
    allowed = ("tensor", "channel", "block") if kind == "float" else ("tensor", "channel", "group")
    group = weights.group("group_size")
    strategy = weights.only("strategy", allowed, default="group" if group else "tensor")
    if kind == "float":
        weights.only("num_bits", (8,))
        return Float8(weights.block("block_structure") if strategy == "block" else None)
    return Integers(weights.only("num_bits", INTEGER_BITS), group if strategy == "group" else None)


def _mxfp4(said: _Settings) -> MXFP4:
    return MXFP4()  # which layers it leaves in float, the tensors say


_READERS: dict[str, Callable[[_Settings], Reader]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _float8,
    "mxfp4": _mxfp4,
}
