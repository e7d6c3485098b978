"""Strict matching of the weights that a decoder needs with the stored ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from suffice.checkpoints.slices import View
from suffice.checkpoints.stacks import EVERY, members
from suffice.checkpoints.stored_file import Array, is_finite
from suffice.decoder.config import DecoderConfig
from suffice.decoder.name_maps import Filled, Half, Slice, Templates
from suffice.decoder.names import shapes
from suffice.errors import InputError, shown

_LISTED = 4  # names in an error message


def match(
    wanted: Mapping[str, tuple[int, ...]],
    templates: Templates,
    stored: Mapping[str, tuple[int, ...]],
    *,
    surplus: Iterable[str] = (),
    base: str = "model.",
    experts: int = 0,
    where: str,
) -> dict[str, str]:
    """Return the stored name of every wanted weight; several may be stored as one.

    That of a stack of `experts` matrices has `*` instead of an index; see `checkpoints.stacks`.

    `templates` is a family's name map, `stored` has the shapes of the checkpoint's weights, and
    stored weights that match one of the patterns `surplus` may be left over. Checkpoints without a
    head leave out the prefix `base`.

    Raises:
        InputError: Weights that are missing, left over or of another shape; lists their names.
    """
    bare = not any(name.startswith(base) for name in stored)
    names = {name: _stored_name(name, templates) for name in wanted}
    if bare:
        names = {name: full.removeprefix(base) for name, full in names.items()}
    used = [part for name in dict.fromkeys(names.values()) for part in members(name, experts)]
    missing = [name for name in used if name not in stored]
    patterns = [re.compile(pattern) for pattern in surplus]
    known = set(used)
    left_over = [
        name
        for name in stored
        if name not in known and not any(pattern.fullmatch(name) for pattern in patterns)
    ]
    if missing or left_over:
        parts = [("missing", missing), ("unknown", left_over)]
        lists = "; ".join(f"{kind}: {_list(items)}" for kind, items in parts if items)
        raise InputError(f"{where}: the weights do not match the configuration; {lists}")
    for name, full in names.items():
        needed = wanted[name]
        cut = _template(name, templates)
        if isinstance(cut, Half):
            *_, needed = cut.split(_by_part(name, cut, wanted))
        elif isinstance(cut, Slice):
            rows = sum(wanted[other][0] for other in _siblings(name, cut))
            needed = cut.shape(rows, needed, experts)
        elif EVERY in full:
            needed = (needed[0] // experts, *needed[1:])
        for part in members(full, experts):
            check_shape(where, part, stored[part], needed)
    return names


def check_shape(where: str, name: str, found: tuple[int, ...], needed: tuple[int, ...]) -> None:
    """Refuse a stored weight of another shape than is needed.

    Raises:
        InputError: It has one.
    """
    if tuple(found) != needed:
        raise InputError(
            f"{where}: weight '{shown(name)}' has shape {list(found)}, "
            f"but the configuration says {list(needed)}"
        )


def check_finite(path: Path, name: str, weight: Array) -> None:
    """Refuse a stored weight, contiguous and of a floating-point type, with NaN or an infinity.

    Raises:
        InputError: It has one.
    """
    if not is_finite(weight):
        raise not_finite(path, name)


def not_finite(path: Path, name: str) -> InputError:
    """Build the error for a stored weight with NaN or an infinity."""
    return InputError(
        f"{path}: weight '{shown(name)}' has NaN or infinite entries; all must be finite"
    )


def check_layers(where: str, layers: object, stored: int) -> None:
    """Refuse more layers than there are stored weights, before anything is made for each layer.

    `layers` is what a configuration states, a number or not; `where` says where it does.

    Raises:
        InputError: There are more.
    """
    if isinstance(layers, int) and layers > stored:
        raise InputError(f"{where} = {layers} layers, but only {stored} weights are stored")


def views(config: DecoderConfig, templates: Templates, names: Mapping[str, str]) -> dict[str, View]:
    """Return the view of a stored weight that each weight with others is; see `slices`.

    `names` are the stored names.
    """
    wanted = shapes(config)
    found: dict[str, View] = {}
    for name, full in names.items():
        cut = _template(name, templates)
        if isinstance(cut, Half):
            found[name] = _half(full, name, cut, wanted)
        if not isinstance(cut, Slice):
            continue
        others = {other: wanted[other][0] for other in _siblings(name, cut)}
        before = list(others)[: list(others).index(name)]
        rows, total = others[name], sum(others.values())
        first = sum(others[other] for other in before)
        run, step, order = rows, total, tuple[int, ...]()
        if cut.alternating:
            first, run, step = len(before), 1, len(others)
        elif cut.by_head:
            heads = rows // config.head_size
            first, run, step = len(before) * config.head_size, config.head_size, total // heads
        elif cut.by_expert and len(others) > 1:
            experts = config.experts.count if config.experts else 1
            first, run, step = first // experts, rows // experts, total // experts
        elif cut.rows is not None:
            order = cut.rows(config, cut.part)
        found[name] = View(full, wanted[name], first, run, step, cut.transposed, order)
    return found


def _half(full: str, name: str, cut: Half, wanted: Mapping[str, tuple[int, ...]]) -> View:
    turned, others, _ = cut.split(_by_part(name, cut, wanted))
    if cut.part == cut.parts[0]:
        return View(full, wanted[name], 0, turned, turned + others, transposed=False, turned=True)
    return View(full, wanted[name], turned, others, turned + others, transposed=False)


def _by_part(
    name: str, cut: Half, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of both parts, by their names within a layer."""
    layer = name.rpartition(".")[0]
    return {part: wanted[f"{layer}.{part}"] for part in cut.parts}


def paired_views(config: DecoderConfig, names: Mapping[str, str]) -> dict[str, View]:
    """Return views of what makes queries and keys, for rows that are stored by rotated pairs.

    The two rows that a rotation mixes are next to each other there; ours are half the rotated rows
    of a head apart. `names` are the stored names.
    """
    if not config.ropes:
        return {}
    rotated = config.ropes[0].rotated(config.head_size)
    order = (*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, config.head_size))
    wanted, found = shapes(config), {}
    for name, full in names.items():
        if name.removesuffix(".bias").rpartition(".")[2] in ("q", "k", "q_norm", "k_norm"):
            group = len(order)
            found[name] = View(full, wanted[name], 0, group, group, transposed=False, order=order)
    return found


def after(name: str, layers: int) -> bool:
    """Return whether a stored name is of a layer after the first `layers`."""
    found = re.search(r"\b(?:layers|blk)\.(\d+)\.", name)
    return found is not None and int(found[1]) >= layers


def module_names(
    config: DecoderConfig, templates: Templates, parts: Iterable[str]
) -> dict[str, str] | None:
    """Return the module, a stored name without `.weight`, of each matrix of layers among `parts`.

    None: the name map lacks some, or has one stored together with what the model lacks.
    """
    wanted = shapes(config)
    names = [
        f"layers.{index}.{part}"
        for index in range(len(config.layers))
        for block in config.blocks(index)
        for part in block.matrices
        if part in parts
    ]
    if any(f"layers.{name.rpartition('.')[2]}" not in templates for name in names):
        return None
    for name in names:
        cut = _template(name, templates)
        if isinstance(cut, Slice) and not wanted.keys() >= set(_siblings(name, cut)):
            return None
    return {name: _stored_name(name, templates).removesuffix(".weight") for name in names}


def _siblings(name: str, cut: Slice) -> list[str]:
    """Return the names of all weights that are stored as one with a matrix or its bias."""
    bias = ".bias" if name.endswith(".bias") else ""
    layer = name.removesuffix(".bias").rpartition(".")[0]
    return [f"{layer}.{part}{bias}" for part in cut.parts]


def filled(wanted: Mapping[str, tuple[int, ...]], templates: Templates) -> dict[str, float]:
    """Return what the vectors that no file has are filled with."""
    found = ((name, _template(name, templates)) for name in wanted)
    return {name: each.value for name, each in found if isinstance(each, Filled)}


def _template(name: str, templates: Templates) -> str | Slice | Half | Filled:
    parts = name.removesuffix(".bias").split(".")
    return templates[parts[0] if len(parts) == 1 else f"layers.{parts[2]}"]


def _stored_name(name: str, templates: Templates) -> str:
    suffix = ".bias" if name.endswith(".bias") else ".weight"
    template = _template(name, templates)
    assert not isinstance(template, Filled), name
    full = template if isinstance(template, str) else template.stored
    layer = name.split(".")[1] if name.startswith("layers.") else ""
    return full.format(i=layer, e=EVERY) + ("" if full.endswith(".bias") else suffix)


def _list(names: list[str]) -> str:
    first = ", ".join(shown(name) for name in sorted(names)[:_LISTED])
    more = len(names) - _LISTED
    return f"{first} and {more} more" if more > 0 else first
