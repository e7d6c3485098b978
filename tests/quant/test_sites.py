"""Which matrices have inputs of 8 bits."""

from __future__ import annotations

import pytest

from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.quant.sites import SITE_OF, VOCABULARY

METHODS = ("file", "int8", "4bit")


def bits(spelled: str) -> dict[str, int]:
    """Return the bits of each matrix's inputs."""
    method = QUANTS.build(spelled)
    return {name: method.for_matrix(name).act_bits for name in (*SITE_OF, *VOCABULARY)}


@pytest.mark.parametrize("method", METHODS)
def test_inputs_with_outliers_and_of_the_vocabulary_keep_16_bits(method: str) -> None:
    assert set(bits(method).values()) == {16}
    found = bits(f"{method}:act_bits=8")
    assert {name for name, each in found.items() if each == 16} == {"down", *VOCABULARY}


@pytest.mark.parametrize("method", METHODS)
def test_sites_are_chosen(method: str) -> None:
    found = bits(f"{method}:act_bits=8,sites=linear")
    assert {name for name, each in found.items() if each == 16} == set(VOCABULARY)
    found = bits(f"{method}:act_bits=8,sites=o+down")
    assert {name for name, each in found.items() if each == 8} == {"o", "down"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("sites=down", "sites=down goes with act_bits=8, not 16"),
        ("act_bits=8,sites=downs", "unknown site 'downs'. Did you mean 'down'?"),
        ("act_bits=4", "act_bits=4; allowed: 8, 16"),
    ],
)
def test_bad_choices_are_refused(method: str, options: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        QUANTS.build(f"{method}:{options}")
    assert message in str(caught.value)
