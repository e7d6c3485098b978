"""Texts to evaluate on: a file, or a data set by name from a hub or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffice.errors import InputError, unknown


@dataclass(frozen=True)
class Corpus:
    """A text with a name: where a hub has it, and what it is called in a folder of data."""

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
    """Return a text by the name of its corpus or of a file.

    Raises:
        InputError: There is neither, the corpus is not to be had, or the file is empty or no text.
    """
    if text in CORPORA:
        return _corpus(text, data_dir)
    path = Path(text)
    if not path.exists() and path.name == text and not path.suffix:
        raise unknown("text (no such file either)", text, tuple(CORPORA))
    return _read(path)


def _corpus(name: str, data_dir: str | None) -> str:
    corpus = CORPORA[name]
    if data_dir is not None:
        for file in corpus.files:
            if (path := Path(data_dir) / file).is_file():
                return _read(path)
        raise InputError(f"--data-dir {data_dir} has no {' or '.join(corpus.files)}")
    try:
        import datasets
    except ModuleNotFoundError:
        raise InputError(
            f"'{name}' is fetched by the package `datasets`, which is not installed: install "
            f"suffice[eval], or put {corpus.files[0]} into a folder and give it with --data-dir"
        ) from None
    source, configuration, split = corpus.hub
    try:
        rows = datasets.load_dataset(source, configuration, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"'{name}' cannot be fetched ({reason:.120}): put {corpus.files[0]} into a folder and "
            "give it with --data-dir"
        ) from None
    return "".join(rows[corpus.column])


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (UTF-8): byte {error.start} cannot be") from None
    if "\0" in text:
        raise InputError(f"{path} is not text: it has zero bytes")
    if not text.strip():
        raise InputError(f"{path} is empty: give a text")
    return text
