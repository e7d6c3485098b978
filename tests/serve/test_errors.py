"""Every error that the documentation lists, and headers without an end."""

from __future__ import annotations

import gzip
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from serving import Served, served
from suffice.engine.work import Final
from suffice.serve import errors
from suffice.serve.errors import Problem
from suffice.serve.http.heads import LINE_BYTES, MOST_HEADER_BYTES, MOST_PATH_BYTES, MOST_UNPARSED
from suffice.serve.interfaces.answer import check

DOCS = Path(__file__).parents[2] / "docs" / "server.md"
Check = Callable[[Served, Callable[..., Any]], Any]


def documented() -> dict[str, int]:
    """The status of each code: cells of two parts, such as "413; 408", belong together."""
    table = DOCS.read_text(encoding="utf-8").partition("## Errors")[2].partition("\n## ")[0]
    found: dict[str, int] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[1][:1].isdigit():
            continue
        statuses = [int(each) for each in re.findall(r"\b[0-9]{3}\b", cells[1])]
        groups = [re.findall(r"`([a-z_]+)`", part) for part in cells[2].split(";")]
        if len(statuses) == 1:
            statuses *= len(groups)
        assert len(statuses) == len(groups), line
        found |= {
            code: status for status, group in zip(statuses, groups, strict=True) for code in group
        }
    return found


def test_every_code_is_documented_with_its_status() -> None:
    found = documented()
    assert set(errors._TYPES) <= set(found)
    assert {code: Problem(code, "").status for code in found} == found


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("too_large", 400),
        ("no_memory", 503),
        ("deadline", 504),
        ("invalid", 400),
        ("internal", 500),
    ],
)
def test_the_engines_errors(code: str, status: int) -> None:
    final = Final(1, 0, 0, error="why", error_code=code)
    with pytest.raises(Problem) as error:
        check(final)
    assert (error.value.status, error.value.message) == (status, "why")


@pytest.mark.parametrize(("wait", "said"), [(0.0, "1"), (0.4, "1"), (2.6, "3")])
def test_a_client_is_told_to_wait_a_second_or_more(wait: float, said: str) -> None:
    assert Problem("queue_full", "", wait=wait).headers()["Retry-After"] == said


CASES: list[tuple[str, Callable[[Served], Any]]] = [
    ("invalid_json", lambda s: s.client.post("/v1/completions", content=b"{")),
    (
        "unsupported_type",
        lambda s: s.client.post(
            "/v1/completions", content=b"{}", headers={"content-type": "text/plain"}
        ),
    ),
    (
        "unsupported_type",
        lambda s: s.client.post(
            "/v1/completions",
            content=gzip.compress(b'{"prompt": "a"}'),
            headers={"content-type": "application/json", "content-encoding": "gzip"},
        ),
    ),
    ("invalid_value", lambda s: s.chat(temperature=-1)),
    ("unknown_field", lambda s: s.chat(temprature=1)),
    ("invalid_schema", lambda s: s.chat(response_format={"type": "x"})),
    ("unsupported", lambda s: s.chat(best_of=2)),
    ("context_length_exceeded", lambda s: s.post("/v1/completions", {"prompt": [5] * 600})),
    ("model_not_found", lambda s: s.chat(model="other")),
    ("not_found", lambda s: s.client.get("/v1/nothing")),
    ("method_not_allowed", lambda s: s.client.get("/v1/completions")),
    ("not_supported", lambda s: s.post("/v1/moderations", {})),
    ("too_large", lambda s: s.client.post("/v1/completions", content=b" " * (9 << 20))),
    (
        "headers_too_large",
        lambda s: s.client.get("/version", headers={"x": "y" * MOST_HEADER_BYTES}),
    ),
    ("uri_too_long", lambda s: s.client.get("/version?" + "a" * MOST_PATH_BYTES)),
    ("no_memory", lambda s: s.post("/v1/completions", {"prompt": [5, 299]})),
]


@pytest.mark.parametrize(("code", "ask"), CASES, ids=[code for code, _ in CASES])
def test_what_is_refused_has_the_documented_status(
    server: Served, code: str, ask: Callable[[Served], Any]
) -> None:
    answer = ask(server)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (documented()[code], code)
    assert error["message"] and "\n" not in error["message"]
    assert ("retry-after" in answer.headers) == (code == "no_memory")


BODY = b'{"prompt": "a"}'
LINES = b"Connection:close\r\nTransfer-Encoding:chunked\r\n"
OF_LINES = len("ConnectioncloseTransfer-Encodingchunked") + 2 * LINE_BYTES
HEAD = b"POST /tokenize HTTP/1.1\r\n" + LINES
CHUNK = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)


def lines(count: int) -> bytes:
    """Return header lines that the limit counts as `count` bytes."""
    short = count // (2 + LINE_BYTES) - 1
    rest = count - short * (2 + LINE_BYTES) - LINE_BYTES
    return b"a:b\r\n" * short + b"c:" + b"d" * (rest - 1) + b"\r\n"


@pytest.mark.parametrize("size", [700, 1 << 20], ids=["in parts", "at once"])
@pytest.mark.parametrize("more", [0, 1], ids=["most", "more"])
@pytest.mark.parametrize(("where", "refusal"), [("path", 414), ("head", 431), ("trailer", 431)])
def test_limits_are_the_same_however_a_head_comes(
    server: Served, where: str, refusal: int, more: int, size: int
) -> None:
    fields = lines(MOST_HEADER_BYTES + more - OF_LINES)
    path = b"/tokenize?".ljust(MOST_PATH_BYTES + more, b"x")
    sent = {
        "path": HEAD.replace(b"/tokenize", path) + b"\r\n" + CHUNK,
        "head": HEAD + fields + b"\r\n" + CHUNK,
        "trailer": HEAD + b"\r\n" + CHUNK + fields,
    }[where] + b"\r\n"
    answer = answer_to(server, [sent[at : at + size] for at in range(0, len(sent), size)])
    status = refusal if more else 200
    assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1") == 1


def test_what_follows_a_body_is_no_header(words: Path, engine_path: None) -> None:
    with served(words, api_keys=("one",)) as locked:
        sent = HEAD + b"\r\n" + CHUNK + b"Authorization: Bearer one\r\n\r\n"
        assert answer_to(locked, [sent]).startswith(b"HTTP/1.1 401 ")


def answer_to(server: Served, parts: Sequence[bytes]) -> bytes:
    """Send parts, and return what is answered."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
        answer = b""
        while read := client.recv(4096):
            answer += read
    return answer


@pytest.mark.parametrize("part", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
def test_headers_without_an_end_are_refused(server: Served, part: bytes) -> None:
    """Many lines, and one that goes on and on."""
    begun = b"GET /version HTTP/1.1\r\nhost: a\r\nlong: "
    answer = answer_to(server, [begun, part * (2 + MOST_UNPARSED // len(part))])
    assert answer.startswith(b"HTTP/1.1 431 ") and b"headers_too_large" in answer
