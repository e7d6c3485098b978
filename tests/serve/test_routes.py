"""The other routes: app.py, plain.py, guard.py, errors.py, cards.py, tokens.py, health.py."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from serving import Served, until
from suffice import __version__

CHAT = "/v1/chat/completions"


def raw(server: Served, data: bytes, wait: float = 5.0) -> bytes:
    """Send bytes and return the answer until the server closes or is silent."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as link:
        link.sendall(data)
        found = b""
        while b"\r\n\r\n" not in found or not found.rstrip().endswith(b"}"):
            part = link.recv(1 << 16)
            if not part:
                break
            found += part
        return found


def test_models(server: Served) -> None:
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["id"] == "scripted" and card["max_model_len"] == 512
    assert card["meta"] == {"n_vocab": 400, "n_ctx": 512, "size": 123}
    assert server.client.get("/v1/models/scripted").json() == card
    assert server.client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_tokens(server: Served) -> None:
    found = server.post("/tokenize", {"prompt": "to be", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    text = server.post("/detokenize", {"tokens": found["tokens"]}).json()
    assert text == {"prompt": "to be", "content": "to be"}
    messages = [{"role": "user", "content": "to be"}]
    longer = server.post("/tokenize", {"messages": messages}).json()
    assert longer["count"] > found["count"] and longer["max_model_len"] == 512
    both = server.post("/tokenize", {"prompt": "a", "messages": messages})
    assert both.status_code == 400
    bad = server.post("/detokenize", {"tokens": [400]})
    assert bad.status_code == 400 and "0 to 399" in bad.json()["error"]["message"]


def test_special_tokens_may_be_left_out(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begins = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    monkeypatch.setattr(server.front.text.tokenizer._backend, "post_processor", begins)
    whole = server.post("/tokenize", {"prompt": "to be"}).json()["tokens"]
    plain = server.post("/tokenize", {"prompt": "to be", "add_special_tokens": False}).json()
    assert whole == [1, *plain["tokens"]]


def test_health_and_version(server: Served) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/ready").json() == {"status": "ready"}
    assert server.client.get("/version").json() == {"version": __version__}


def test_metrics(server: Served) -> None:
    assert server.chat(max_tokens=3).status_code == 200
    page = server.client.get("/metrics").text
    labels = '{engine="0",model_name="scripted"}'
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(values[f"suffice:generation_tokens_total{labels}"]) >= 3
    assert float(values[f"suffice:time_to_first_token_seconds_count{labels}"]) >= 1
    assert float(values[f"suffice:kv_rows_held_total{labels}"]) >= 60
    assert f"suffice:num_requests_running{labels}" in values
    assert "_created" not in page


def test_metrics_may_have_vllms_prefix(serving: Callable[..., Any]) -> None:
    with serving(metrics_prefix="vllm") as server:
        assert "vllm:num_requests_waiting" in server.client.get("/metrics").text


def test_head_is_get_without_the_body(server: Served) -> None:
    for path in ("/health", "/ready", "/version", "/v1/models", "/v1/models/none", "/"):
        got, answer = server.client.get(path), server.client.head(path)
        assert (answer.status_code, answer.content) == (got.status_code, b""), path
        assert answer.headers["content-length"] == got.headers["content-length"]
    assert server.client.head("/metrics").status_code == 200
    assert server.client.head(CHAT).status_code == 405
    assert server.client.head("/live").headers["content-type"].startswith("text/event-stream")
    until(lambda: not server.front.live.watchers)  # nobody reads


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
@pytest.mark.parametrize("cut", [0, 40, 150, 250])
def test_an_offer_of_another_protocol_is_ignored(server: Served, offer: str, cut: int) -> None:
    """Wherever its bytes are cut, and with others behind it."""
    body = json.dumps({"prompt": "hello", "max_tokens": 5, "seed": 1}).encode()
    plain = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    offers = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {offer}\r\n".encode()
    whole = plain + offers + b"HTTP2-Settings: AAMAAABk\r\n" + length + b"\r\n" + body
    parts = b"".join(b"%x\r\n%b\r\n" % (1, body[at : at + 1]) for at in range(len(body)))
    whole += plain + b"Transfer-Encoding: chunked\r\n" + offers + b"\r\n" + parts + b"0\r\n\r\n"
    whole += b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in (whole[:cut], whole[cut:]):
            link.sendall(data)
            time.sleep(0.02)
        answers = b""
        while data := link.recv(1 << 16):
            answers += data
    found = [part.split(b"\r\n\r\n", 1) for part in answers.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    bodies = [json.loads(content) for _, content in found]
    text = server.post("/v1/completions", json.loads(body)).json()["choices"]
    assert [each.get("choices") for each in bodies] == [text, text, None]


def test_many_offers_at_once(server: Served) -> None:
    one = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(one * 2000)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 2000:
            data = link.recv(1 << 16)
            assert data, "the server has closed the connection"
            answers += data


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("POST", "/v1/moderations", 501, "not_supported"),
        ("DELETE", "/v1/requests/none", 404, "not_found"),
    ],
)
def test_unknown_routes(server: Served, method: str, path: str, status: int, code: str) -> None:
    answer = server.client.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["code"] == code
    assert status != 405 or answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"messages": NaN}', "is not JSON"),
        (b'{"messages": "\xff"}', "is not JSON"),
        (b'{"messages": ["\\ud800"]}', "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 100_000 + b"}", ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bodies_that_are_not_json(server: Served, body: bytes, part: str) -> None:
    headers = {"content-type": "application/json"}
    answer = server.client.post(CHAT, content=body, headers=headers)
    assert answer.status_code == 400 and len(answer.content) < 4096
    assert part in answer.json()["error"]["message"]


def test_another_type_is_refused(server: Served) -> None:
    answer = server.client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415 and "curl --json" in answer.json()["error"]["message"]


MESSAGES = "/v1/messages"


def test_errors_of_messages_have_anthropics_form(serving: Callable[..., Any]) -> None:
    """Also those before its route, which know no more than the path."""
    key = {"x-api-key": "k"}
    with serving(api_keys=("k",), body_seconds=0.2, root_path="/a") as server:
        client, head = server.client, b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\n"
        late = raw(server, head + b"Content-Length: 10\r\n\r\n{").partition(b"\r\n\r\n")[2]
        text, large = key | {"content-type": "text/plain"}, b" " * (9 << 20)
        found = {
            "authentication_error": client.post(MESSAGES, json={}).json(),
            "invalid_request_error": client.post(MESSAGES, content=b"{}", headers=text).json(),
            "request_too_large": client.post(f"/a{MESSAGES}", content=large, headers=key).json(),
            "timeout_error": json.loads(late),
        }
        found["not_found_error"] = client.post(f"{MESSAGES}/x", json={}, headers=key).json()
        for kind, body in found.items():
            assert body["type"] == "error" and body["error"]["type"] == kind, body
        got = client.get(MESSAGES, headers=key).json()
        assert (got["type"], got["error"]["code"]) == ("error", "method_not_allowed")
        server.models.draining = True
        assert client.post(MESSAGES, json={}, headers=key).json()["type"] == "error"
        assert "type" not in client.post(CHAT, json={}, headers=key).json()
        server.models.draining = False


def test_many_faults_make_a_short_answer(server: Served) -> None:
    messages = [{"role": "x" * 500}] * 5000
    answer = server.post(CHAT, {"messages": messages, "stop": [1] * 10_000, "n": "y" * 10_000})
    assert answer.status_code == 400 and len(answer.content) < 4096


def test_a_body_beyond_the_limit(server: Served) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    found = raw(server, head + b"Content-Length: 1000000000\r\n\r\n{")
    assert b" 413 " in found and b"too_large" in found
    chunks = b"".join(b"100000\r\n" + b" " * (1 << 20) + b"\r\n" for _ in range(9))
    found = raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert b" 413 " in found


def test_a_body_that_does_not_come(serving: Callable[..., Any]) -> None:
    with serving(body_seconds=0.2) as server:
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        found = raw(server, head + b"Content-Length: 10\r\n\r\n{")
        assert b" 408 " in found


@pytest.fixture(scope="module")
def locked(words: Any, engine_path: None) -> Iterator[Served]:
    from serving import served

    with served(words, api_keys=("first", "second"), allowed_origins=("https://a.example",)) as s:
        yield s


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer first"}, 200),
        ({"authorization": "bearer second"}, 200),
        ({"x-api-key": "second"}, 200),
        ({"authorization": "Basic first"}, 401),
    ],
)
def test_keys(locked: Served, headers: dict[str, str], status: int) -> None:
    answer = locked.client.get("/v1/models", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["type"] == "authentication_error"
    assert locked.client.get("/health", headers=headers).status_code == 200


def test_pages_of_an_allowed_origin(locked: Served) -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = locked.client.options(CHAT, headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"


def test_what_is_refused_may_be_read_by_an_allowed_origin(locked: Served) -> None:
    headers = {"origin": "https://a.example"}
    for key, status in (("first", 400), ("wrong", 401)):
        answer = locked.client.post(CHAT, json={}, headers=headers | {"x-api-key": key})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "https://a.example"


def test_what_is_refused_is_counted(server: Served) -> None:
    def count() -> float:
        label = 'admission_rejections_total{model_name="scripted",reason="invalid_value"}'
        lines = server.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if label in line)

    before = count()
    assert server.chat(temperature=-1).status_code == 400
    assert count() == before + 1


def test_requests_under_the_path_of_a_proxy(serving: Callable[..., Any]) -> None:
    with serving(root_path="/models/a") as server:
        for prefix in ("", "/models/a"):
            assert server.post(f"{prefix}/v1/completions", {"prompt": "a"}).status_code == 200
            assert server.client.get(f"{prefix}/v1/completions").status_code == 405
        assert server.post("/models/b/v1/completions", {"prompt": "a"}).status_code == 404


def test_an_error_of_the_server_is_one_line(server: Served, monkeypatch: Any) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(server.front, "check_model", fail)
    answer = server.chat()
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["error"]["code"] == "internal"
    assert answer.headers["x-should-retry"] == "false"
