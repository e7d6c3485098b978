"""Parts of RULER's needle-in-a-haystack tasks: needles, haystacks and questions.

A needle is a sentence that assigns a value to a key. A haystack is a list of pieces (lines or
sentences) of any length; needles are inserted between its pieces.
"""

from __future__ import annotations

import itertools
import random
import re
import uuid
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache

from suffice.data.essay import essay

NEEDLE = "One of the special magic {values} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
TEMPLATE = (
    "{some} special magic {values} {are} hidden within the following text. Make sure to memorize "
    "it. I will quiz you about the {values} afterwards.\n{context}\n"
    "What {are_all} the special magic {values} for {query} mentioned in the provided text?"
)
PREFIX = "The special magic {values} for {query} mentioned in the provided text {are}"
ONE = {"some": "A", "are": "is", "are_all": "is"}
MANY = {"some": "Some", "are": "are", "are_all": "are all"}

DIGITS = 7  # of a number
# Depths of needles in an essay: percentage of the sentences before the needle
DEPTHS = tuple(round(100 * step / 39) for step in range(40))

ADJECTIVES = """
able ample ancient angular arctic autumn awake bashful bitter blank bold brave brief bright brisk
broad calm careful chilly civil clean clever coastal crisp curious curly dainty daring decent deep
distant dusty eager early earnest elastic elegant fair faithful famous fancy feeble fertile fluent
fragile frosty frugal gentle genuine gifted glossy golden graceful grand grateful gritty hasty
hidden hollow honest humble idle jolly jubilant keen kindly lasting lavish lively lofty loyal lucid
mellow mild misty modest muddy narrow nimble noble obscure pale patient placid plain polite proud
quaint quick quiet rapid ripe rugged rustic sandy scarce serene shallow shiny silent sincere sleepy
slender smooth sober solemn sparse spicy stable steady stern sturdy subtle sunny swift tender tidy
timid tranquil upright urban vague velvet vivid warm weary windy witty worldly zealous
""".split()  # noqa: SIM905 (a list would take a line for every word)

NOUNS = """
acorn airport almond anchor anvil apron arrow attic badger bakery balcony bamboo banjo barley barn
basin basket beacon beaver bell berry bicycle blanket blossom bonnet bottle boulder bracket bramble
bridge broom bucket buckle bugle button cabin cactus camel canal candle canoe canyon caravan carpet
carrot castle cattle cavern cedar cellar chapel chariot cherry chimney cinema citadel clover coffee
comet compass copper coral cottage cradle crayon cricket crystal curtain cushion cypress dairy
daisy desert diary dolphin donkey dragon drawer drizzle eagle easel elbow ember engine envelope
falcon farmer feather fiddle filter finch flannel flute forest fountain fox furnace gallery garlic
gate geyser ginger glacier glove goblet goose granite grape gravel guitar hammer hamlet hammock
harbor harvest hazel hedge helmet heron hinge honey hornet island ivory jacket jaguar jasmine jersey
jungle kayak kernel kettle kitten ladder lagoon lantern laurel lemon lentil letter lily lizard
locket lotus magnet mango maple marble market meadow melon mill mirror mitten monsoon mosaic muffin
museum mustard napkin needlework nest nettle notebook nutmeg oak oasis ocean olive onion orchard
orchid otter oven oyster paddle palace panther parade parsley pasture peach pebble pelican pepper
piano pillow pilot planet plaza plum pocket poplar poppy portrait potter prairie puddle pumpkin
puzzle quarry quilt rabbit radish rafter raisin raven ribbon ridge rocket saddle saffron sail salmon
sandal satchel school shadow shelter shovel sickle silver sparrow spindle spruce squirrel stable
statue stove summit sweater temple thimble thistle thunder timber tower tractor trumpet tulip tunnel
turtle valley vanilla village violin wagon walnut walrus weaver whistle willow window winter yogurt
""".split()  # noqa: SIM905


@dataclass(frozen=True)
class Needle:
    """A key, its value, and its depth: the percentage of the haystack's pieces before it."""

    key: str
    value: str
    depth: float


Draw = Callable[[random.Random], str]


def word(chance: random.Random) -> str:
    """Return an adjective and a noun, joined by a hyphen."""
    return f"{chance.choice(ADJECTIVES)}-{chance.choice(NOUNS)}"


def number(chance: random.Random) -> str:
    """Return a number of seven digits."""
    return str(chance.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))


def identifier(chance: random.Random) -> str:
    """Return a UUID of version 4."""
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


DRAWS: dict[str, Draw] = {"words": word, "numbers": number, "uuids": identifier}


def drawn_beside(taken: Container[str], kind: str, chance: random.Random) -> str:
    """Return a random key or value of some kind that is not in `taken`."""
    while (found := DRAWS[kind](chance)) in taken:
        pass
    return found


class Noise:
    """The same few sentences in every line."""

    joint = "\n"

    def pieces(self, size: int) -> list[str]:
        """Return `size` lines."""
        return [NOISE] * size


class Essay:
    """The first words of an essay, repeated if it is too short, split into sentences."""

    joint = " "

    def pieces(self, size: int) -> list[str]:
        """Return the first `size` words as sentences; the last may be incomplete."""
        text = " ".join(itertools.islice(itertools.cycle(essay_words()), size))
        return re.split(r"(?<=[.?!]) ", text)


class Needles:
    """Lines in the form of needles, with keys and values that no needle has."""

    joint = "\n"

    def __init__(self, key: str, value: str, taken: Container[str], seed: str) -> None:
        self._key, self._value, self._taken = key, value, taken
        self._chance = random.Random(seed)
        self._lines: list[str] = []

    def pieces(self, size: int) -> list[str]:
        """Return `size` lines; more lines extend fewer ones."""
        while len(self._lines) < size:
            key = drawn_beside(self._taken, self._key, self._chance)
            value = drawn_beside(self._taken, self._value, self._chance)
            self._lines.append(NEEDLE.format(values=self._value, key=key, value=value))
        return self._lines[:size]


@cache
def essay_words() -> list[str]:
    """Return the words of the essay that comes with the package."""
    return essay().split()


def filled(pieces: Sequence[str], needles: Sequence[tuple[float, str]]) -> list[str]:
    """Return pieces with sentences inserted, each at a depth in percent."""
    result = list(pieces)
    for depth, sentence in sorted(needles, reverse=True):
        result.insert(int(len(pieces) * depth / 100), sentence)
    return result


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: a; a, and b; a, b, and c."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


def question(kind: str, queries: Sequence[str], answers: int) -> tuple[str, str]:
    """Return the prompt, with a field {context} to fill in, and the beginning of the answer.

    `kind` is the plural name of the values; `answers` is the number of values asked for.
    """
    grammar = ONE if answers == 1 else MANY
    values = kind.removesuffix("s") if answers == 1 else kind
    asked = grammar | {"values": values, "query": listed(queries)}
    return TEMPLATE.format_map(asked | {"context": "{context}"}), PREFIX.format_map(asked)
