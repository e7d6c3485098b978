"""`POST /slots/ID?action=save`, `restore` and `erase`: llama.cpp's files of texts.

A file has keys and values of a text; who begins a prompt with it after a restore computes the rest
alone. Files of an API key or `cache_salt` are in a folder of their own, so that others neither find
nor replace them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice.engine import saved_rows
from suffice.engine.work import RowsFile
from suffice.errors import InputError, brief
from suffice.paths import make_private_folder
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.http.slots import plain
from suffice.serve.interfaces.answer import check, collected
from suffice.serve.interfaces.fields import parsed
from suffice.serve.interfaces.requests import group
from suffice.serve.processes import wire

ACTIONS = ("save", "restore", "erase")
MOST_BYTES = 200  # of a name: what is being written has a longer one
_NONE = "\n"  # the group of requests without a key or a salt


class Action(BaseModel):
    """The fields of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    filename: str | None = None
    model: str | None = None  # an adapter's name, for `restore`
    cache_salt: str | None = Field(None, max_length=256)


async def act(
    front: Front, request: Request, raw: bytes, key: str, place: str, action: str
) -> Response:
    """Save, restore or erase what a place ended with.

    Raises:
        Problem: The server has no folder for it, or the request is bad.
    """
    folder = front.settings.slot_save_path
    if folder is None:
        message = "this server does not support slots action: start it with --slot-save-path DIR"
        raise Problem("not_supported", message)
    if not (place.isascii() and place.isdigit() and len(place) < 7 and int(place) < front.places):
        raise Problem("invalid_value", f"slot {brief(place)}: must be 0 to {front.places - 1}")
    if action not in ACTIONS:
        raise Problem("invalid_value", f"action={brief(action)}: must be {', '.join(ACTIONS)}")
    body = parsed(raw or b"{}", Action)
    front.check_model(body.model)
    at, owner = int(place), group(front, key, body.cache_salt)
    if action == "erase":
        text = front.slots.text(at, owner)
        if text is not None:
            front.slots.put(at, None)
        return JSONResponse({"id_slot": at, "n_erased": 0 if text is None else len(text.prompt)})
    whole = Path(folder).expanduser()
    path = _path(whole, owner, _name(body.filename))
    began = time.monotonic()
    if action == "save":
        text = front.slots.text(at, owner)
        if text is None:
            raise Problem(
                "invalid_value", f"slot {at} has no text of yours: there is nothing to save"
            )
        await asyncio.to_thread(_make_private, whole, path.parent)
        most = front.facts.max_model_len - 1  # the engine runs no longer prompt
        text, names = plain(text, text.prompt[:most]), ("saved", "written")
    else:
        text, names = await _text_of(front, path, key, owner, body.model), ("restored", "read")
    await _run(
        front, request, msgspec.structs.replace(text, file=RowsFile(str(path), action == "save"))
    )
    front.slots.put(at, text)
    size = (await asyncio.to_thread(path.stat)).st_size
    spent = {f"{action}_ms": round(1000 * (time.monotonic() - began), 3)}
    counts = {f"n_{names[0]}": len(text.prompt), f"n_{names[1]}": size}
    return JSONResponse({"id_slot": at, "filename": path.name, **counts, "timings": spent})


def _name(given: str | None) -> str:
    """Return the name of a file.

    Raises:
        Problem: It is none, or has parts of a path.
    """
    name = given or ""
    parts = name in ("", ".", "..") or "/" in name or "\\" in name
    if parts or not name.isprintable() or len(name.encode()) > MOST_BYTES:
        must = f"must be a plain name of at most {MOST_BYTES} bytes, such as slot.bin"
        raise Problem("invalid_value", f"filename={brief(given)}: {must}", param="filename")
    return name


def _path(folder: Path, owner: str, name: str) -> Path:
    """Return where a group's file of this name is."""
    if owner == _NONE:
        return folder / name
    own = hashlib.blake2b(owner.encode(), digest_size=16, person=b"suffice slots")
    return folder / own.hexdigest() / name


def _make_private(*folders: Path) -> None:
    """Make folders that this user alone can open.

    Raises:
        Problem: It cannot be made.
    """
    try:
        for each in folders:
            make_private_folder(each)
    except OSError as error:
        message = f"the folder of saved slots cannot be made: {error.strerror}"
        raise Problem("invalid_value", message) from None


async def _text_of(
    front: Front, path: Path, key: str, owner: str, model: str | None
) -> wire.Submit:
    """Return the text whose rows are in a file.

    Raises:
        Problem: There is no such file, or it is damaged.
    """
    if not await asyncio.to_thread(path.is_file):
        message = f"there is no saved slot '{path.name}' of yours"
        raise Problem("not_found", message, param="filename")
    try:
        tokens = await asyncio.to_thread(saved_rows.tokens_of, path)
    except InputError as error:
        raise _of_file(path, str(error)) from None
    return wire.Submit(
        id="",
        prompt=tokens,
        params={"max_tokens": 1},
        key=key,
        attention=front.facts.attentions[0],
        adapter=model if model in front.settings.adapters else None,
        group=owner,
    )


async def _run(front: Front, request: Request, text: wire.Submit) -> None:
    """Have an engine write or read the rows of a text.

    Raises:
        Problem: It cannot be written, or not be read.
    """
    assert text.file is not None, "it has a file"
    with front.job("slot", text.key) as job:
        front.submit(job, [msgspec.structs.replace(text, id=job.id)])
        try:
            await collected(job, request, lambda ticket, delta: check(delta.final))
        except Problem as problem:
            raise _of_file(Path(text.file.path), problem.message, problem.code) from None
        front.finish(job)


def _of_file(path: Path, message: str, code: str = "invalid_value") -> Problem:
    """Return what a client is told: where the server's folder is concerns it not."""
    return Problem(code, message.replace(str(path), path.name), param="filename")
