"""The keys and values of a saved conversation, in a file next to its text.

The text alone is enough to go on: without its rows they are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.engine.saved_rows import remove
from suffice.errors import InputError

if TYPE_CHECKING:
    from suffice.engine.session import Session


def rows_of(chat: Path) -> Path:
    """Return the file of rows that belongs to a conversation's."""
    return chat.with_name(f"{chat.name}.rows")


def saved(session: Session, chat: Path, prompt: Sequence[int]) -> str:
    """Save the rows of a conversation that the model reads as `prompt`; return what became of them.

    Those of a text that was dropped are not saved, and what is there of another is removed.
    """
    try:
        count = session.save(rows_of(chat), prompt)
    except InputError as error:
        remove(rows_of(chat))
        return f"its keys and values are not saved: {error}"
    return f"saved: {count:,} tokens of keys and values in {rows_of(chat).name}"


def loaded(session: Session, chat: Path) -> str:
    """Go on with the rows of a conversation, if they fit; return what became of them."""
    try:
        count = session.load(rows_of(chat))
    except InputError as error:
        return f"its keys and values are computed again: {error}"
    return f"loaded: {count:,} tokens of keys and values"
