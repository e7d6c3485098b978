"""The sizes of multi-head latent attention, which caches one short row for all heads.

Source   DeepSeek-AI 2024, DeepSeek-V2, section 2.1.
Exact    always: the matrices that make each head's keys and values of a row are multiplied with the
         head's query and output instead (section 2.1.2), which is the same product.
Differs  Decode steps and prompts are computed alike; see docs/decisions/latent.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import InputError

_WHOLE = 16  # entries of a panel
_MOST = 576  # entries of a row in the native core
_FIELDS = {
    "rank": "kv_lora_rank",
    "plain": "qk_nope_head_dim",
    "rotated": "qk_rope_head_dim",
    "value": "v_head_dim",
}


@dataclass(frozen=True)
class Latent:
    """Attention to rows of `rank` normalized entries, then `rotated` ones, which all heads share.

    A head's query has `plain` entries, to be compared with what `key_up` makes of the row's first
    `rank`, and `rotated` ones. Its value has `value` entries. Queries are made of an input or, if
    `low` is not 0, of that many normalized entries that are made of it. `adjacent`: a rotation
    mixes entries that are next to each other, else those half of the rotated part apart. `norm_eps`
    is that of the norms.

    Raises:
        InputError: A size that the core does not support; the message names the checkpoint's field.
    """

    rank: int
    plain: int
    rotated: int
    value: int
    low: int = 0
    adjacent: bool = False
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, field in _FIELDS.items():
            if getattr(self, name) % _WHOLE:
                raise InputError(
                    f"config field '{field}' = {getattr(self, name)} is not supported; "
                    f"supported: multiples of {_WHOLE}"
                )
        if self.row > _MOST:
            raise InputError(
                f"config fields 'kv_lora_rank' + 'qk_rope_head_dim' = {self.row} are more than "
                f"the {_MOST} entries that a row can have"
            )

    @property
    def row(self) -> int:
        """Entries of a cached row."""
        return self.rank + self.rotated

    @property
    def query(self) -> int:
        """Entries of a head's query, before it is compared with rows."""
        return self.plain + self.rotated
