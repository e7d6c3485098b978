"""A file with the rows of one text, which a later process goes on with.

    | head | whose rows | tokens | rows, block by block | states after some lengths, if any |

Rows are there as the cache stores them, for the model and the options that made them alone. What
does not fit is refused with a reason: a text must never begin with the rows of another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suffice.cache import BLOCK, block_file, stored_rows
from suffice.cache.block_file import HEAD, NAME, Block, Damaged, Place
from suffice.cache.kv import KVCache
from suffice.cache.stored_rows import Taken
from suffice.engine.protocol import LoopRunner, Sequence
from suffice.errors import InputError, shown
from suffice.paths import PRIVATE, try_write_whole, write_whole

_MAGIC = b"sufficeP"
_VERSION = 2
_DIGEST = 16
_FIELDS = struct.Struct("<8sIIII")  # version, tokens, lengths with states, bytes of whose rows
_ROWS = 256  # of a block: what is copied at a time
_SHORT = 24  # characters of a value that is said
_FIRST = ("version", "model")  # where these differ, what else does follows from them
Whose = Mapping[str, str]  # all that bits of rows depend on besides the tokens, by users' names


def save(path: Path, cache: KVCache, tokens: abc.Sequence[int], whose: Whose) -> None:
    """Write the rows of a cache's first tokens, either completely or not at all.

    Raises:
        InputError: The file cannot be written, or exists and holds something else.
    """
    _check_ours(path)
    lengths = [each for each in _kept(cache) if each <= len(tokens)]
    said = json.dumps(dict(whose)).encode()
    fields = _FIELDS.pack(_MAGIC, _VERSION, len(tokens), len(lengths), len(said))
    head = fields + said + np.asarray([*tokens, *lengths], "<i4").tobytes()
    try:
        with write_whole(path, PRIVATE) as part, part.open("wb") as stream:
            stream.write(head + hashlib.blake2b(head, digest_size=_DIGEST).digest())
            for place in _places(head, len(tokens), lengths):
                for each in _block(cache, place).parts:
                    stream.write(each)
    except OSError as error:
        raise _unwritable(path, error) from None


def check(path: Path) -> None:
    """Refuse a file that `save` could not write, before its rows are computed.

    Raises:
        InputError: It cannot be made, or exists and holds something else.
    """
    _check_ours(path)
    try:
        try_write_whole(path)
    except OSError as error:
        raise _unwritable(path, error) from None


def remove(path: Path) -> None:
    """Remove a file that `save` wrote; what is none stays."""
    if _is_ours(path):
        with contextlib.suppress(OSError):
            path.unlink()


def _check_ours(path: Path) -> None:
    _check_name(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file")
    if path.exists() and not _is_ours(path):
        raise InputError(f"{path} is no file of saved rows: give another name")


def _check_name(path: Path) -> None:
    if "\0" in str(path):
        raise InputError(f"{shown(str(path))} is no path: it has a null character")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written: {error.strerror or error}")


def _kept(cache: KVCache) -> list[int]:
    return list(cache.native.kept_states) if cache.stateful else []


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _places(head: bytes, tokens: int, lengths: abc.Sequence[int]) -> Iterator[Place]:
    """Yield the blocks of a file; those without rows have the states after `first` tokens."""
    name = hashlib.blake2b(head, digest_size=NAME).digest()
    rows = -(-tokens // BLOCK) * BLOCK
    for first in range(0, rows, _ROWS):
        yield Place(name, first, min(_ROWS, rows - first))
    for length in lengths:
        yield Place(name, length, 0)


def _block(cache: KVCache, place: Place) -> Block:
    if place.rows:
        return Block(place, stored_rows.taken(cache, place.first, place.rows))
    return Block(
        place, Taken(np.empty(0, np.uint8), 0), stored_rows.taken_state(cache, place.first)
    )


def opened(runner: LoopRunner, context: int, path: object, tokens: int) -> Sequence:
    """Return a new sequence with memory for the tokens of a file.

    Raises:
        InputError: The context has no room for them.
        OutOfMemory: There is no memory for their rows.
    """
    if tokens > context:
        raise InputError(f"{path} has {tokens} tokens: the context has {context}")
    sequence: Sequence = runner.open("", context)
    cache: Any = sequence.cache
    try:
        cache.reserve(tokens)
    except BaseException:
        runner.close(sequence)
        raise
    return sequence


def load(path: Path, whose: Whose, opened: Callable[[int], Sequence]) -> tuple[Sequence, list[int]]:
    """Return a sequence with the rows of a file that `save` wrote, and their tokens.

    `opened` returns a new one with memory for a number of tokens.

    Raises:
        InputError: The file cannot be read, is damaged, or is of another model or other options.
        OutOfMemory: There is no memory for the rows.
    """
    with _opened(path) as file:
        head, theirs, tokens, lengths = _head(path, file)
        if others := _differences(theirs, whose):
            raise InputError(f"{path} was saved with {others}: give the same, or another file")
        sequence: Any = opened(len(tokens))
        cache: KVCache = sequence.cache
        try:
            _read(file, cache, _places(head, len(tokens), lengths), len(head) + _DIGEST)
        except BaseException:
            cache.close()
            raise
        if not cache.stateful:
            stored_rows.resume(cache, len(tokens))
        return sequence, tokens


def tokens_of(path: Path) -> list[int]:
    """Return the tokens whose rows are in a file, of whichever model.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    with _opened(path) as file:
        return _head(path, file)[2]


def _differences(theirs: Whose, ours: Whose) -> str:
    """Return in words how a file's rows differ from ours; nothing if they do not."""
    found = {}
    for name in {**theirs, **ours}:
        there, here = theirs.get(name, "None"), ours.get(name, "None")
        if there != here:
            short = max(len(there), len(here)) <= _SHORT
            found[name] = f"{name} {there} (here {here})" if short else f"another {name}"
    first = [name for name in _FIRST if name in found]
    return ", ".join(found[name] for name in first or found)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield a file's descriptor.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    _check_name(path)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    try:
        yield file
    except Damaged:
        raise InputError(f"{path} is damaged; remove it, and its rows are computed again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(file)


def _head(path: Path, file: int) -> tuple[bytes, Whose, list[int], list[int]]:
    """Return a file's head, whose rows they are, their tokens and lengths with states."""
    fields = os.pread(file, _FIELDS.size, 0)
    if len(fields) < _FIELDS.size or not fields.startswith(_MAGIC):
        raise InputError(f"{path} is no file of saved rows")
    _, version, count, states, said = _FIELDS.unpack(fields)
    if version != _VERSION:
        raise InputError(f"{path} has version {version}; {_VERSION} is known")
    size = _FIELDS.size + said + 4 * (count + states)
    if size > os.fstat(file).st_size:
        raise Damaged
    both = os.pread(file, size + _DIGEST, 0)
    head, digest = both[:size], both[size:]
    if digest != hashlib.blake2b(head, digest_size=_DIGEST).digest():
        raise Damaged
    begins = _FIELDS.size + said
    numbers = np.frombuffer(head, "<i4", count + states, begins).tolist()
    return head, json.loads(head[_FIELDS.size : begins]), numbers[:count], numbers[count:]


def _read(file: int, cache: KVCache, places: Iterator[Place], at: int) -> None:
    for place in places:
        stateful = not place.rows
        state = block_file.read(file, place, cache, stateful=stateful, at=at)
        if state is None:
            at += HEAD + stored_rows.size_of(cache, place.rows)
        else:
            at += HEAD + len(state)
            stored_rows.resume(cache, place.first, state)
    if at != os.fstat(file).st_size:
        raise Damaged
