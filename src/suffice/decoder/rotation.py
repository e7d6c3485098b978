"""Rotary positions, as a configuration has them; their tables are made by `decoder.rope`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from suffice.decoder.checks import MAX_SIZE, check_number, check_size
from suffice.decoder.rope_kinds import ROPE_KINDS
from suffice.errors import InputError, brief, unknown

MAX_HEAD_SIZE = 512
_LEAST_FACTOR = 1e-3  # smaller ones would turn angles into infinities

# parameter below, parameter above, and their values if they are not given
_BANDS = (("low_freq_factor", "high_freq_factor", 0.0, 0.0), ("beta_slow", "beta_fast", 1.0, 32.0))


def check_rope_parameter(name: str, value: Any, within: str = "") -> None:
    """Refuse an impossible value of a parameter of a rotation; `within` precedes its name.

    Raises:
        InputError: It is one.
    """
    field = within + name
    if name == "original_max_position_embeddings":
        check_size(field, value)
    elif name == "truncate":
        if not isinstance(value, bool):
            raise InputError(f"config field '{field}' = {brief(value)} must be true or false")
    elif name in ("long_factor", "short_factor"):
        if not isinstance(value, list | tuple) or len(value) > MAX_HEAD_SIZE // 2:
            raise InputError(
                f"config field '{field}' = {brief(value)} must be a list of numbers, "
                "one for every two entries of a head"
            )
        for number in value:
            check_number(field, number, _LEAST_FACTOR)
    else:
        check_number(field, value, _LEAST_FACTOR if name == "factor" else 0)


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the frequencies by which queries and keys are rotated.

    `parameters` belong to the kind (`factor`, ...), under their names in checkpoints. `divisors`,
    if given, divide the frequencies one by one. The first entries of a head are rotated, `partial`
    of all (of "proportional": `partial` of all pairs); `backward`: by minus their angles. `text`:
    the length in tokens whose frequencies it has, where these depend on the text's; None: that on
    which the model was first trained (see `fitted`).

    Raises:
        InputError: An unknown kind, a parameter that it lacks or does not know, an impossible
            number; the message names the checkpoint's field.
    """

    kind: str = "default"
    theta: float = 10_000.0
    parameters: tuple[tuple[str, Any], ...] = ()
    divisors: tuple[float, ...] = ()
    partial: float = 1.0
    text: int | None = None
    backward: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ROPE_KINDS:
            raise unknown("rope_type", str(self.kind), ROPE_KINDS)
        check_number("rope_theta", self.theta, above=1)
        check_number("partial_rotary_factor", self.partial)
        given: dict[str, Any] = {  # a file of JSON has lists
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.parameters
        }
        required, optional = ROPE_KINDS[self.kind]
        for name, value in given.items():
            if name not in required | optional:
                raise unknown(f"parameter of rope_type '{self.kind}'", name, required | optional)
            check_rope_parameter(name, value)
        missing = sorted(required - set(given))
        if missing:
            raise InputError(f"rope_type '{self.kind}' needs the parameter '{missing[0]}'")
        for low, high, below, above in _BANDS:
            if low in given or high in given:
                bound, value = given.get(low, below), given.get(high, above)
                if self.kind != "llama3" or value != bound:  # a band may be a single wavelength
                    check_number(f"rope_parameters.{high}", value, above=bound)
        object.__setattr__(self, "parameters", tuple(sorted(given.items())))

    def rotated(self, head_size: int) -> int:
        """Return how many entries of a head are rotated, perhaps by nothing."""
        return head_size if self.kind == "proportional" else int(head_size * self.partial)

    def reached(self, positions: int) -> tuple[int, int]:
        """Return the context length of a model trained on `positions`, and the longest it allows.

        YaRN is a setting for long texts, so a model with YaRN uses its stretched length by default.
        Others may be stretched by their factor on request, at some cost in quality.
        """
        given = dict(self.parameters)
        if self.kind == "yarn":
            stretched = _stretched(given["original_max_position_embeddings"], given["factor"])
            return max(positions, stretched), max(positions, stretched)
        if self.kind in ("linear", "dynamic"):
            return positions, max(positions, _stretched(positions, given["factor"]))
        return positions, positions

    def fitted(self, positions: int, context: int) -> Rope:
        """Return the rotation for texts of up to `context` tokens; `positions` are as above.

        Source: Peng et al. 2023, YaRN, section 3.3 (dynamic); Ding et al. 2024, LongRoPE. There,
        frequencies follow the length of each text as it grows, and keys that are cached keep
        those of a shorter one. Here all texts have the frequencies of the longest, as in vLLM.
        """
        return replace(self, text=context if context > self.unfitted(positions) else None)

    def unfitted(self, positions: int) -> int:
        """Return the tokens of the longest text for which the frequencies need no fitting."""
        if self.kind == "longrope":
            original: int = dict(self.parameters)["original_max_position_embeddings"]
            return min(positions, original)
        return positions if self.kind == "dynamic" else self.reached(positions)[1]


def _stretched(positions: int, factor: float) -> int:
    """Return positions x factor; more than the largest size if it is not a size."""
    return int(min(positions * float(factor), 2.0 * MAX_SIZE))


def check_rotated(rope: Rope, head_size: int) -> None:
    """Refuse a part of a head that cannot be rotated, and lists of another length.

    Raises:
        InputError: It is one.
    """
    entries = rope.rotated(head_size)
    if rope.partial > 1 or entries < 2 or entries % 2:
        raise InputError(
            f"config field 'partial_rotary_factor' = {rope.partial:g} rotates {entries} entries of "
            f"a head of {head_size}; an even number of them can be rotated"
        )
    count = entries // 2
    lists = {name: value for name, value in rope.parameters if isinstance(value, tuple)}
    if rope.divisors:
        lists["rope_freqs"] = rope.divisors
    for name, numbers in lists.items():
        if len(numbers) != count:
            raise InputError(
                f"config field '{name}' has {len(numbers)} numbers; "
                f"needed: {count}, half of "
                + ("'head_dim'" if entries == head_size else "the rotated part of 'head_dim'")
            )
