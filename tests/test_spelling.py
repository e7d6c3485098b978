"""Options have names that say what they are; the names they had are understood until 0.3."""

from typing import Any

import pytest

from suffice.attention import ATTENTIONS
from suffice.attention.aet import AET
from suffice.errors import InputError
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.registry import Table

SPELLINGS = [
    (ATTENTIONS, "aet:k=0.8,v=0.01", "aet:keys=0.8,values=0.01"),
    (ATTENTIONS, "aet:keys=2", "aet:keys=all"),
    (
        ATTENTIONS,
        "art:tau=1e-3,phi=0.1,p=2,v=0.1",
        "art:change=1e-3,angle=0.1,patience=2,values=0.1",
    ),
    (ATTENTIONS, "certified:v=0.1", "certified:values=0.1"),
    (POLICIES, "h2o:keep=true", "h2o:rank_only=true"),
    (POLICIES, "snapkv:keep", "snapkv:rank_only"),
    (
        QUANTS,
        "kmeans:w=3,a=4,a_group=64,levels=float32",
        "kmeans:bits=3,act_bits=4,act_group=64,centroids=float32",
    ),
    (QUANTS, "kllm:a=3", "kllm:act_bits=3"),
    (QUANTS, "rtn:w=3,a=8", "rtn:bits=3,act_bits=8"),
]


@pytest.mark.parametrize(("table", "old", "new"), SPELLINGS)
def test_old_names_are_understood(table: Table, old: str, new: str) -> None:
    assert table.build(old) == table.build(new)
    assert repr(table.build(old)) == repr(table.build(new))


def options(text: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = text.partition(":")
    return name, dict(item.split("=") for item in rest.split(",") if "=" in item)


@pytest.mark.parametrize(("table", "old", "new"), SPELLINGS)
def test_old_names_are_understood_by_name_and_value(table: Table, old: str, new: str) -> None:
    assert table.make(*options(old)) == table.make(*options(new))


@pytest.mark.parametrize("text", ["aet:k=0.8,keys=0.8", "aet:keys=0.8,k=0.8"])
def test_one_option_by_both_names_is_given_twice(text: str) -> None:
    with pytest.raises(InputError, match=r"attention 'aet': option 'k(eys)?' is given twice"):
        ATTENTIONS.build(text)


def test_errors_know_the_new_names_alone() -> None:
    with pytest.raises(InputError) as error:
        ATTENTIONS.build("aet:q=1")
    assert str(error.value).endswith("globals, keys, locals, order, sinks, values")
    with pytest.raises(InputError, match="k='much' must be a number"):
        ATTENTIONS.build("aet:k=much")


def test_a_word_stands_for_a_value() -> None:
    assert ATTENTIONS.build("aet:keys=all").keys == AET.exact_limit().keys
    with pytest.raises(InputError, match="values='all' must be a number"):
        ATTENTIONS.build("aet:values=all")
