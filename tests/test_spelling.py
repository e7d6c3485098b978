"""How a technique's options are spelt in text, and what errors call them."""

import pytest

from suffice.attention import ATTENTIONS
from suffice.attention.aet import AET
from suffice.errors import InputError


def test_an_option_is_given_once() -> None:
    with pytest.raises(InputError, match=r"attention 'aet': option 'keys' is given twice"):
        ATTENTIONS.build("aet:keys=0.8,keys=0.8")


@pytest.mark.parametrize("text", ["aet:k=0.8", "aet:q=1"])
def test_another_name_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(InputError) as error:
        ATTENTIONS.build(text)
    assert str(error.value).endswith("globals, keys, locals, order, sinks, values")


def test_a_word_stands_for_a_value() -> None:
    assert ATTENTIONS.build("aet:keys=all").keys == AET.exact_limit().keys
    for text in ("keys='much'", "values='all'"):
        with pytest.raises(InputError, match=f"{text} must be a number"):
            ATTENTIONS.build("aet:" + text.replace("'", ""))
