"""Weights of a checkpoint are matched with those that a decoder needs, by name and shape."""

from __future__ import annotations

import pytest

from suffice.checkpoints.matching import check_layers, match
from suffice.decoder.name_maps import stored_together
from suffice.errors import InputError

MAP = {
    "embed": "model.embed",
    "layers.o": "model.layers.{i}.o",
    **stored_together("model.layers.{i}.qkv", "q", "k", "v"),
}
WANTED = {
    "embed": (10, 4),
    "layers.0.q": (8, 4),
    "layers.0.k": (2, 4),
    "layers.0.v": (2, 4),
    "layers.0.o": (4, 8),
}
STORED = {
    "model.embed.weight": (10, 4),
    "model.layers.0.qkv.weight": (12, 4),
    "model.layers.0.o.weight": (4, 8),
}


def test_weights_that_are_stored_as_one_have_one_name() -> None:
    found = match(WANTED, MAP, STORED, where="here")
    assert found == {
        "embed": "model.embed.weight",
        **dict.fromkeys(["layers.0.q", "layers.0.k", "layers.0.v"], "model.layers.0.qkv.weight"),
        "layers.0.o": "model.layers.0.o.weight",
    }


def test_a_checkpoint_without_a_head_leaves_out_the_base() -> None:
    bare = {name.removeprefix("model."): shape for name, shape in STORED.items()}
    assert match(WANTED, MAP, bare, where="here")["embed"] == "embed.weight"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model.embed.weight": None}, "missing: model.embed.weight$"),
        ({"model.norm.weight": (4,)}, "unknown: model.norm.weight$"),
        ({"model.embed.weight": (4, 10)}, r"shape \[4, 10\], but .* says \[10, 4\]"),
        ({"model.layers.0.qkv.weight": (11, 4)}, r"shape \[11, 4\], but .* says \[12, 4\]"),
    ],
)
def test_what_does_not_match_is_named(
    change: dict[str, tuple[int, ...] | None], complaint: str
) -> None:
    stored = {name: shape for name, shape in (STORED | change).items() if shape is not None}
    with pytest.raises(InputError, match=f"here: .*{complaint}"):
        match(WANTED, MAP, stored, where="here")


def test_left_over_weights_of_a_surplus_are_allowed() -> None:
    stored = STORED | {"model.layers.0.rotary": (2,)}
    assert match(WANTED, MAP, stored, surplus=(r".*\.rotary",), where="here")


def test_more_layers_than_weights_are_refused() -> None:
    check_layers("file: 'layers'", 3, 3)
    with pytest.raises(InputError, match="'layers' = 4 layers, but only 3 weights are stored"):
        check_layers("file: 'layers'", 4, 3)
