"""Texts for evaluations: from a file, or from a named data set in a hub or a folder."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from suffice.errors import InputError, unknown


@dataclass(frozen=True)
class Corpus:
    """A named text: its place in a hub, and its file names in a folder of data."""

    hub: tuple[str, str, str]  # path, configuration, split
    column: str
    files: tuple[str, ...]


CORPORA = {
    "wikitext2": Corpus(
        hub=("Salesforce/wikitext", "wikitext-2-raw-v1", "test"),
        column="text",
        files=("wikitext2-test-raw.txt", "wiki.test.raw"),
    ),
}


def load_text(text: str, data_dir: str | None = None) -> str:
    """Return the text of a corpus or of a file.

    Raises:
        InputError: There is neither, the corpus is not available, or the file is empty or no text.
    """
    if text in CORPORA:
        return _corpus(text, data_dir)
    path = Path(text)
    if not path.exists() and path.name == text and not path.suffix:
        raise unknown("text (no such file either)", text, tuple(CORPORA))
    return read(path)


def described(name: str, text: str, windows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a result's facts on its text, which was cut into windows of one length."""
    return {
        "name": PurePath(name).name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "line_ends": line_ends(text),
        "windows": len(windows),
        "window": len(windows[0]),
    }


def line_ends(text: str) -> str:
    """Return how a text's lines end: LF, CRLF, CR, mixed, or none.

    They are tokens, so the same text with other line ends has another perplexity.
    """
    found = set(re.findall(r"\r\n|\r|\n", text))
    names = {"\n": "LF", "\r\n": "CRLF", "\r": "CR"}
    return "mixed" if len(found) > 1 else names[found.pop()] if found else "none"


def _corpus(name: str, data_dir: str | None) -> str:
    corpus = CORPORA[name]
    if data_dir is not None:
        return read(file_in(data_dir, corpus.files))
    return "".join(fetched(name, corpus))


def file_in(data_dir: str, names: Sequence[str]) -> Path:
    """Return the first file in a folder of data that has one of these names.

    Raises:
        InputError: The folder or the file does not exist.
    """
    if not Path(data_dir).is_dir():
        raise InputError(f"--data-dir {data_dir}: there is no such folder")
    for file in names:
        if (path := Path(data_dir) / file).is_file():
            return path
    raise InputError(f"--data-dir {data_dir} has no {' or '.join(names)}: put it there")


def fetched(name: str, corpus: Corpus) -> list[str]:
    """Return the texts of a corpus, row by row, from the hub.

    Raises:
        InputError: The hub is not reachable, or the package to access it is not installed.
    """
    return list(fetch(name, corpus.hub, corpus.files[0])[corpus.column])


def fetch(name: str, hub: tuple[str, str | None, str], file: str) -> Any:
    """Return the rows of a data set; `hub` is its path, configuration and split.

    `file` is the file that a user without a hub can put into a folder; errors name it.

    Raises:
        InputError: The hub is not reachable, or the package to access it is not installed.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise InputError(
            f"'{name}' needs the package `datasets`, which is not installed: install "
            f"suffice[eval], or put {file} into a folder and give it with --data-dir"
        ) from None
    source, configuration, split = hub
    try:
        with _quiet("datasets", "huggingface_hub"):  # they report each retry
            return datasets.load_dataset(source, configuration, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"'{name}' cannot be fetched ({reason:.120}): put {file} into a folder and give it "
            "with --data-dir"
        ) from None


@contextmanager
def _quiet(*libraries: str) -> Iterator[None]:
    loggers = [logging.getLogger(library) for library in libraries]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def json_value(where: str, line: str) -> Any:
    """Return the value of a line of JSON; `where` names the line in errors.

    Raises:
        InputError: The line is not JSON, or cannot be represented.
    """
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        raise InputError(f"{where}: is not JSON ({reason} at character {error.pos + 1})") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: has a number too long, or is nested too deep") from None


def read(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InputError: The file cannot be read, is empty, or is not text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (UTF-8): byte {error.start} is invalid") from None
    if "\0" in text:
        raise InputError(f"{path} is not text: it has zero bytes")
    if not text.strip():
        raise InputError(f"{path} is empty")
    return text
