"""Downloads one file of a hub, going on where an earlier attempt ended."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.errors import InputError, one_line
from suffice.pull.storage import BLOCK_BYTES, sha256

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


@dataclass(frozen=True)
class Source:
    """A file to download: how errors begin, where it is, what a refusal means, what it must be."""

    said: str
    url: str
    headers: dict[str, str]
    refused: Callable[[HfHubHTTPError], InputError]
    size_bytes: int
    sha256: str | None


class _Told(io.FileIO):
    """A file that tells how long it is after each write."""

    arrived: Callable[[int], None]

    def write(self, data: object) -> int:
        """Append bytes."""
        count = super().write(data)  # type: ignore[arg-type]
        self.arrived(self.tell())
        return count


def download(source: Source, part: Path, arrived: Callable[[int], None]) -> None:
    """Download a file to `part`, which may have its beginning; `arrived` is told of the bytes.

    Raises:
        InputError: The server refuses it or cannot be reached, or the file is not as announced;
            then `part` is removed.
        OSError: The file cannot be written.
    """
    from huggingface_hub import constants, file_download, utils
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    constants.DOWNLOAD_CHUNK_SIZE = BLOCK_BYTES  # what a broken connection loses at most
    utils.disable_progress_bars()  # type: ignore[attr-defined]
    utils.logging.set_verbosity(logging.ERROR)  # it tells of every attempt
    with _Told(part, "a") as file:
        file.arrived = lambda length: arrived(min(length, source.size_bytes))
        have = file.tell()
        try:
            if have < source.size_bytes:
                file_download.http_get(
                    source.url,
                    file,
                    resume_size=have,
                    headers=source.headers,
                    expected_size=source.size_bytes,
                )
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status < 500:
                raise source.refused(error) from None
            raise InputError(f"{source.said}: the server answers {status}") from None
        except HTTPError as error:
            raise InputError(
                f"{source.said}: the connection broke: {one_line(error)}; "
                f"{file.tell() / 1e6:.0f} MB are here: the same command goes on"
            ) from None
        except OSError as error:
            if error.errno is not None:
                raise
            # another length than was announced, which is said below
    arrived(source.size_bytes)
    _check(source, part)


def _check(source: Source, part: Path) -> None:
    """Require the announced size and sha256; a file without them is removed."""
    size = part.stat().st_size
    if size != source.size_bytes:
        wrong = f"{size} bytes instead of {source.size_bytes}"
    elif source.sha256 is not None and (found := sha256(part)) != source.sha256:
        wrong = f"the sha256 {found[:16]}... instead of {source.sha256[:16]}..."
    else:
        return
    part.unlink()
    raise InputError(f"{source.said} has {wrong}; it was not kept, try again")
