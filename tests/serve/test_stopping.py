"""A server in a process of its own: signals, ports, flags. Tests run.py and cli/serve.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from commands import Cli, complaint
from serving import ENGINE, SUPPORT, events
from suffice.cli.commands import app
from suffice.cli.serve import ServerFlags
from suffice.errors import InputError
from suffice.serve import run
from suffice.serve.settings import GENERATION, Settings, sampling_defaults

CODE = """
import sys, json
from suffice.text.tokenizer import load_tokenizer
from suffice.serve.run import serve
from suffice.serve.settings import Settings
from suffice.serve.http.text import Text
folder, settings = sys.argv[1:]
sys.exit(serve([Settings(**json.loads(settings))], Text(load_tokenizer(folder))))
"""


class Process:
    def __init__(self, words: Path, **settings: Any) -> None:
        chosen = {"model": "scripted", "engine": ENGINE, "port": 0, "access_log": False, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(words), json.dumps(chosen)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        )
        assert self.process.stderr is not None
        said = []  # other lines may come first: of cores that another server has
        for line in self.process.stderr:
            said.append(line)
            if " at http" in line:
                break
        assert said and " at http" in said[-1], said
        self.url = said[-1].split(" at ")[1].strip()
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def chat(self, **fields: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": "a"}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def make(words: Path) -> Iterator[Any]:
    made: list[Process] = []

    def start(**settings: Any) -> Process:
        made.append(Process(words, **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_a_signal_lets_requests_end(make: Any) -> None:
    server = make(options={"step_seconds": 0.02})
    answers: list[httpx2.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.chat(max_tokens=60, stream=True)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    page = ""
    while "num_requests_running" not in page or " 8.0" not in page:
        page = server.client.get("/metrics").text
    server.process.send_signal(signal.SIGTERM)
    status = 200
    while status == 200:
        ready = server.client.get("/ready")
        status = ready.status_code
    assert status == 503 and ready.json()["error"]["code"] == "draining"
    refused = server.chat()
    assert refused.status_code == 503 and refused.headers["connection"] == "close"
    for thread in threads:
        thread.join()
    assert server.process.wait(60) == 0
    for answer in answers:
        found = events(answer)
        assert found[-1] == "[DONE]" and found[-2]["choices"][0]["finish_reason"] == "length"


def test_time_to_stop_has_an_end(make: Any) -> None:
    server = make(options={"step_seconds": 0.05}, shutdown_seconds=2.0)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(server.chat(max_tokens=400, stream=True)))
    thread.start()
    while (
        " 1.0" not in server.client.get("/metrics").text.partition("num_requests_running{")[2][:99]
    ):
        pass
    server.process.send_signal(signal.SIGINT)
    thread.join()
    assert server.process.wait(60) == 0
    assert events(found[0])[-2]["error"]["code"] == "draining"


def test_bodies_that_have_not_come_end_a_server_no_later(make: Any) -> None:
    server = make(options={"step_seconds": 0.02})
    links = [linked(server, first) for first in (ANNOUNCED, ANNOUNCED + b'{"mess', CHUNKED)]
    found: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: found.append(server.chat(max_tokens=60, stream=True)))
    thread.start()
    while " 1.0" not in server.client.get("/metrics").text.partition("requests_running{")[2][:99]:
        pass
    server.process.send_signal(signal.SIGINT)
    for link in links:
        answer = read(link)
        assert answer.startswith(b"HTTP/1.1 503 ") and b'"code":"draining"' in answer
    assert not found, "a request in work goes on"
    thread.join()
    assert events(found[0])[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(60) == 0 and server.process.stderr.read() == ""


def test_clients_that_read_nothing_are_broken_off(make: Any) -> None:
    server = make(options={"step_seconds": 0.0}, shutdown_seconds=0.1)
    asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "n": 8}
    body = json.dumps({**asked, "logprobs": True, "top_logprobs": 20, "stream": True}).encode()
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    link.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    link.recv(1)
    time.sleep(1)  # until the server's writes wait; on a busy machine, they may not yet
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0 and server.process.stderr.read() == ""
    link.close()


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ANNOUNCED = HEAD + b"Content-Length: 1000\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def linked(server: Process, first: bytes) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)
    link.sendall(first)
    return link


def read(link: socket.socket) -> bytes:
    found = b""
    with link, contextlib.suppress(ConnectionResetError):
        while part := link.recv(65536):
            found += part
    return found


def test_a_second_signal_ends_requests_with_an_error(make: Any) -> None:
    server = make(options={"step_seconds": 0.1})
    found: list[httpx2.Response] = []

    def ask(stream: bool) -> None:
        found.append(server.chat(stream=stream, max_tokens=400))

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    for thread in threads:
        thread.start()
    while (
        " 2.0" not in server.client.get("/metrics").text.partition("num_requests_running{")[2][:99]
    ):
        pass
    server.process.send_signal(signal.SIGTERM)
    time.sleep(1)  # some tokens of both
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(25) == 0
    for thread in threads:
        thread.join()
    whole, stream = sorted(found, key=lambda answer: "text/event-stream" in str(answer.headers))
    assert whole.status_code == 503 and whole.json()["error"]["code"] == "draining"
    assert events(stream)[-2]["error"]["code"] == "draining" and events(stream)[-1] == "[DONE]"


def test_no_engine_is_left_behind(make: Any) -> None:
    server = make()
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    task = Path(f"/proc/{server.process.pid}/task")
    pids = [pid for each in task.iterdir() for pid in (each / "children").read_text().split()]
    assert len(pids) == 1 and children.exists()
    server.process.kill()
    server.process.wait()
    end = time.monotonic() + 20
    while Path(f"/proc/{pids[0]}").exists() and _state(pids[0]) != "Z":
        assert time.monotonic() < end, "the engine lives on"
        time.sleep(0.01)


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_socket_instead_of_a_port(make: Any, words: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", CODE, str(words)),
            json.dumps({"model": "scripted", "engine": ENGINE, "uds": str(path)}),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )
    assert process.stderr is not None
    assert any(f"unix:{path}" in line for line in process.stderr), "it says where it listens"
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        link.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in link.recv(1000)
    process.terminate()
    process.communicate()
    assert process.returncode == 0 and not path.exists()


def test_a_live_socket_is_refused_and_a_dead_one_taken_over(
    cli: Cli, checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        found = cli("serve", "-m", str(checkpoint), "--uds", str(path))
        line = f"--uds {path}: is in use: stop the other program, or choose another path"
        assert found.code == 2 and found.err == f"suffice: error: {line}\n"
        other.settimeout(5)
        with other.accept()[0] as asked:
            assert asked.recv(1) == b"", "it was asked, and is there still"
    assert path.exists(), "as a program that was killed leaves it"
    with run.listening(Settings("x", uds=str(path))) as listener:
        assert listener.getsockname() == str(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    path.unlink()
    path.write_text("kept")
    found = cli("serve", "-m", str(checkpoint), "--uds", str(path))
    assert found.code == 2 and "is no socket: choose another path" in found.err
    assert path.read_text() == "kept"


def test_the_socket_of_another_server_is_left_at_the_end(tmp_path: Path) -> None:
    settings = Settings("x", uds=str(tmp_path / "socket"))
    path = Path(str(settings.uds))
    with run.listening(settings), run.removed(settings):
        path.rename(tmp_path / "old")
        path.write_text("another's")
    assert path.exists()


def test_a_port_in_use_is_one_line(cli: Cli, checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        found = cli("serve", "-m", str(checkpoint), "--port", port)
    assert found.code == 2
    line = f"--port {port}: is in use: stop the other program, or choose another port"
    assert found.err == f"suffice: error: {line}\n"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--port", "70000"], "--port 70000: must be a whole number in [0, 65535]"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout -1: must be a number from 0 to"),
        (["--shutdown-timeout", "inf"], "--shutdown-timeout inf: must be a number from 0 to"),
        (["-np", "0"], "-np 0: must be a whole number of at least 1"),
        (["--max-num-seqs=9999999999"], "--max-num-seqs 9999999999: must be a whole number of at"),
        (["--max-queue", "-1"], "--max-queue -1: must be a whole number of at least 0"),
        (["--max-queued-tokens", "9" * 30], "9: must be at most 9223372036854775807"),
        (["-c", "9" * 30], "9: must be at most 9223372036854775807"),
        (["--threads-per-instance", "0"], "--threads-per-instance 0: must be a whole number of"),
        (["--request-timeout", "-1"], "--request-timeout -1: must be a number above 0"),
        (["-to", "nan"], "-to nan: must be a number above 0"),
        (["--sse-ping-interval", "nan"], "--sse-ping-interval nan: must be a number above 0"),
        (["--sse-ping-interval", "1e30"], "must be a number above 0, at most 2147483647"),
        (["--step-ms", "inf"], "--step-ms inf: must be a number above 0, at most 2147483647"),
        (["--cors-origins", "foo"], "--cors-origins foo: must be an origin such as"),
        (["--cors-origins", "foo.org"], "or * for all. Did you mean 'https://foo.org'?"),
        (["--cors-origins", "http://a.b/"], "Did you mean 'http://a.b'?"),
        (["--cors-origins", "http://a.b/c"], "without a path"),
        (["--root-path", "foo/"], "--root-path foo/: must be a path as the proxy has it. Did you "),
        (["--alias", ""], "--alias '': must be a name"),
        (["--slot-save-path", __file__], "must be a folder, or the path of a new one"),
        (["--ssl-keyfile", "x"], "TLS needs both"),
        (["--ssl-keyfile", "/no", "--ssl-certfile", "/nowhere"], "/nowhere: No such file"),
        (["--ssl-keyfile", __file__, "--ssl-certfile", __file__], f"--ssl-certfile {__file__}: "),
        (["--metrics-prefix", "a b"], "must be a word"),
        (["--generation-config", "x"], "must be one of auto, openai, vllm"),
        (["--api-key-file", "/nowhere"], "No such file"),
        (["--attention", "none"], "unknown"),
        (["--host", "not an address"], "--host not an address"),
        (["-m", "nothing"], "unknown model 'nothing'"),
    ],
)
def test_bad_flags_are_one_line(cli: Cli, checkpoint: Path, flags: list[str], part: str) -> None:
    model = [] if "-m" in flags else ["-m", str(checkpoint)]
    found = cli("serve", *model, *flags)
    assert found.code == 2 and part in found.err and found.err.count("\n") == 1


def test_memory_for_no_request_is_one_line(words: Path) -> None:
    command = [sys.executable, "-c", "from suffice.cli import main; main()", "serve"]
    flags = ["-m", str(words), "-t", "1", "--port", "0", "--kv-cache-bytes", "12287"]
    found = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    line = found.stderr.splitlines()[-1]  # others may say who has the cores
    assert line == (
        "suffice: error: --kv-cache-bytes 12287: must be at least 12288, the bytes of the shortest "
        "request's keys and values"
    )


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://a.b", "https://a.b:80", "http://[::1]:8", "app://x"]
)
def test_origins(origin: str) -> None:
    assert Settings("x", allowed_origins=(origin,)).allowed_origins == (origin,)


def test_help_names_all_generation_configs(cli: Cli) -> None:
    text = " ".join(cli("serve", "--help").out.split())
    start = text.index("--generation-config")
    assert all(each in text[start : start + 200] for each in GENERATION)


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\none\n\n  two\n")
    keys = ServerFlags(own={"api_keys": ("zero",)}, api_key_file=file).keys()
    assert keys == ("zero", "one", "two")
    file.write_text("# none yet\n")
    with pytest.raises(InputError, match="has no key"):
        ServerFlags(api_key_file=file).keys()


def test_defaults_of_sampling(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": 2}')
    assert sampling_defaults("auto", str(tmp_path)) == {"temperature": 0.6}
    assert sampling_defaults("openai", str(tmp_path)) == {}
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(InputError, match="no JSON object"):
        sampling_defaults("auto", str(tmp_path))


def test_names() -> None:
    assert Settings(model="smollm2-135m").names == ("smollm2-135m",)
    assert Settings(model="/a/b.gguf").names == ("b", "/a/b.gguf")
    assert Settings(model="org/name").names == ("org/name", "name")
    assert Settings(model="a", served_names=("x",)).names == ("x",)


def test_flags_have_both_spellings() -> None:
    (program,) = [each for name, each in app.known().items() if name == "serve"]
    parameters = program.get_params(click.Context(program))
    names = {name for each in parameters for name in each.opts}
    assert {"--parallel", "--max-num-seqs", "--alias", "--served-model-name", "-np"} <= names


def test_a_model_is_named_once(cli: Cli) -> None:
    said = complaint(cli("serve", "one", "-m", "other"))
    assert said == "the model one and -m other contradict each other: give models in one way"


@pytest.mark.parametrize("name", ["host", "uds"])
def test_an_empty_address_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}='': must be"):
        Settings(model="m", **{name: ""})  # type: ignore[arg-type]
