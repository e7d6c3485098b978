"""`suffice run --prompt-cache`: a file with the rows of a prompt, from one run to the next."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cli.flags import flag

if TYPE_CHECKING:
    from suffice.engine.disk_prefixes import DiskPrefixes
    from suffice.engine.llm import LLM
    from suffice.engine.request import RequestOutput
    from suffice.engine.session import Session

    Stream = Generator[tuple[str, RequestOutput], None, None]

_REST = 10.0  # seconds for writing what was computed
FILE = flag(
    None,
    "--prompt-cache",
    "A file with keys and values of the prompt: what it begins with is not computed again, and at "
    "the end, or after Ctrl-C, it has those of this prompt instead of another's.",
    panel="Kept prompts",
    metavar="FILE",
)


def check_file(file: Path | None) -> None:
    """Refuse a file that cannot be written, before a model is loaded for it.

    Raises:
        InputError: It cannot be made, or holds something else.
    """
    from suffice.engine import saved_rows

    if file is not None:
        saved_rows.check(file)


@contextlib.contextmanager
def streaming(
    llm: LLM, file: Path | None, adapter: str | None
) -> Iterator[Callable[[Any, Any], Stream]]:
    """Yield a function that streams the answer to a prompt, and keep the prompt in a file.

    After Ctrl-C a line says how much of it is there: of a long prompt that is what one waits for.

    Raises:
        InputError: The file is damaged, of another model, or cannot be written; or the policy keeps
            no rows that others can use. Nothing has been run.
    """
    if file is None:
        with _kept_in_folder(llm.loop.disk):
            yield lambda prompt, params: llm.stream(prompt, params, adapter=adapter)
        return
    there = file.exists()
    session = llm.load_prefix(file, adapter=adapter) if there else llm.session(adapter)
    with session:
        session.check_save(file)
        before, prompt = session.tokens, list[int]()

        def stream(given: Any, params: Any) -> Stream:
            for text, output in session.stream(given, params):
                prompt[:] = output.prompt_token_ids
                yield text, output

        interrupted = False
        try:
            yield stream
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            if session.tokens:
                count = _saved(session, file, before, prompt)
                if interrupted:
                    goes_on = "the same command goes on with them"
                    print(f"{count} tokens are kept in {file}: {goes_on}", file=sys.stderr)


@contextlib.contextmanager
def _kept_in_folder(disk: DiskPrefixes | None) -> Iterator[None]:
    """Say after Ctrl-C that `--prefix-dir` has what was computed, if it has any of it."""
    try:
        yield
    except KeyboardInterrupt:
        if disk is not None:
            disk.writer.flush(_REST)
            if disk.folder.counts.written:
                kept = f"what was computed is kept in {disk.folder.path}"
                print(f"{kept}: the same command goes on with it", file=sys.stderr)
        raise


def _saved(session: Session, file: Path, before: list[int], prompt: list[int]) -> int:
    """Save a session, and say what that replaced; return how many of its tokens are in the file.

    A file that has as many, and begins with the whole prompt, is left as it is.
    """
    tokens = session.tokens
    asked = prompt or tokens  # it was interrupted before anything was told of the prompt
    if len(before) >= len(tokens) and before[: len(asked)] == asked:
        return len(tokens)
    count = session.save(file)
    if len(before) > count:
        same = (old == new for old, new in zip(before, tokens[:count], strict=False))
        lost = len(before) - sum(1 for _ in takewhile(bool, same))
        print(f"{lost} tokens of another text were replaced in {file}", file=sys.stderr)
    return count
