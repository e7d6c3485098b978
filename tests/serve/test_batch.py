"""`suffice batch`: files of requests, resumed after interruptions, the same bytes in every run.

Tests batch.py, batch_file.py, batch_setting.py and chance.py.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commands import Cli
from suffice import native

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def request(name: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    talk = [{"role": "user", "content": f"hello {name}"}]
    given: dict[str, Any] = {
        CHAT: {"messages": talk, "max_tokens": 6},
        PLAIN: {"prompt": f"once {name}", "max_tokens": 6},
        RESPONSES: {"input": f"hello {name}", "max_output_tokens": 6},
        MESSAGES: {"messages": talk, "max_tokens": 6},
    }.get(url, {})
    return {"custom_id": name, "method": "POST", "url": url, "body": {**given, **body}}


def several(count: int) -> list[dict[str, Any]]:
    urls = (CHAT, PLAIN, RESPONSES, MESSAGES)
    return [request(f"r{i}", urls[i % 4]) for i in range(count)]


def written(path: Path, requests: list[Any]) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in requests]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Folder:
    """A file of requests and the model that answers them."""

    def __init__(self, cli: Cli, folder: Path, model: Path) -> None:
        self.cli, self.folder, self.model = cli, folder, model

    def run(self, requests: list[Any], output: str = "out.jsonl", *flags: str) -> Any:
        source = written(self.folder / "in.jsonl", requests)
        target = self.folder / output
        return self.cli("batch", "-m", self.model, "-i", source, "-o", target, *flags)

    def results(self, output: str = "out.jsonl") -> list[dict[str, Any]]:
        return read(self.folder / output)


@pytest.fixture
def batch(cli: Cli, tmp_path: Path, words: Path) -> Folder:
    return Folder(cli, tmp_path, words)


def test_all_endpoints_are_answered_in_order(batch: Folder) -> None:
    found = batch.run(several(8))
    assert found.code == 0 and "8 requests: 8 answered" in found.err, found.err
    results = batch.results()
    assert [each["custom_id"] for each in results] == [f"r{i}" for i in range(8)]
    for each in results:
        assert each["error"] is None and each["response"]["status_code"] == 200
    chat, plain, response, message = (each["response"]["body"] for each in results[:4])
    assert chat["object"] == "chat.completion" and chat["choices"][0]["message"]["content"]
    assert plain["object"] == "text_completion" and plain["usage"]["completion_tokens"] == 6
    assert response["object"] == "response" and message["type"] == "message"


def test_the_bytes_do_not_depend_on_what_runs_beside(batch: Folder) -> None:
    drawn = [request(f"d{i}", temperature=1.0) for i in range(4)]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    called = request("call", tools=[tool], tool_choice="none", n=2, temperature=1.0)
    embedded = request("embedded", "/v1/embeddings", input=["a", "to be"], dimensions=3)
    ranked = request("ranked", "/v1/rerank", query="a", documents=["b"])  # which it cannot
    requests = [*several(8), *drawn, called, embedded, ranked]
    batch.run(requests, "together.jsonl", "-np", "8")
    batch.run(requests, "alone.jsonl", "-np", "2")  # the least for n=2
    batch.run(requests[::-1], "two.jsonl", "--instances", "2", "-np", "2")
    together = (batch.folder / "together.jsonl").read_bytes()
    assert (batch.folder / "alone.jsonl").read_bytes() == together
    assert batch.results("two.jsonl")[::-1] == batch.results("together.jsonl")
    texts = [each["response"]["body"]["choices"] for each in batch.results("together.jsonl")[8:12]]
    assert len({json.dumps(each) for each in texts}) > 1  # the seeds differ
    vectors, rank = (each["response"] for each in batch.results("together.jsonl")[-2:])
    assert [len(each["embedding"]) for each in vectors["body"]["data"]] == [3, 3]
    assert rank["status_code"] == 400 and "cannot rank" in rank["body"]["error"]["message"]


def test_a_run_goes_on_where_another_stopped(batch: Folder) -> None:
    requests = several(8)
    batch.run(requests)
    path = batch.folder / "out.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    marked = lines[5].replace(b'"custom_id":"r5"', b'"custom_id": "r5"')  # told apart if run again
    assert marked != lines[5]
    path.write_bytes(marked + lines[1] + lines[2][:30])
    found = batch.run(requests)
    assert "6 answered, 2 done before" in found.err
    assert path.read_bytes() == whole.replace(lines[5], marked)
    found = batch.run(requests)
    assert "0 answered, 8 done before" in found.err and found.code == 0


def test_bad_requests_have_their_own_errors(batch: Folder) -> None:
    good = request("good")
    found = batch.run(
        [
            "{not JSON",
            "[1]",
            "",
            {**request("extra"), "more": 1},
            {**request("get"), "method": "GET"},
            {**request("where"), "url": "/v1/chat/completion"},
            {**request("body"), "body": []},
            {**request("x"), "custom_id": 7},
            request("stream", stream=True),
            request("field", temprature=1),
            request("long", messages=[{"role": "user", "content": "word " * 5000}]),
            good,
        ]
    )
    assert found.code == 0 and "11 requests: 1 answered, 10 refused" in found.err, found.err
    assert "refused, such as line 1: is not JSON" in found.err
    found = batch.run([request("field", temprature=1), good], "two.jsonl")
    assert "1 answered, 1 refused, such as 'field': " in found.err and "temprature" in found.err
    results = batch.results()
    faults = [each["error"] for each in results[:7]]
    parts = ["line 1: is not JSON", "line 2: must be a JSON object", "line 4: unknown field 'more'",
             "method: must be 'POST'", "Did you mean '/v1/chat/completions'?",
             "body: must be a JSON object", "line 8: custom_id: must be a text, not 7"]  # fmt: skip
    for fault, part in zip(faults, parts, strict=True):
        assert fault["code"] == "invalid_line" and part in fault["message"], fault
    refused = [each["response"] for each in results[7:10]]
    assert [each["status_code"] for each in refused] == [400] * 3
    assert "no streams" in refused[0]["body"]["error"]["message"]
    assert "'temperature'" in refused[1]["body"]["error"]["message"]
    assert refused[2]["body"]["error"]["code"] == "context_length_exceeded"
    batch.run([good], "alone.jsonl")
    assert batch.results("alone.jsonl")[0] == results[-1]


def test_a_byte_order_mark_is_no_part_of_the_first_request(batch: Folder) -> None:
    batch.run(several(2), "plain.jsonl")
    source = batch.folder / "marked.in"
    source.write_bytes(
        codecs.BOM_UTF8 + written(batch.folder / "in.jsonl", several(2)).read_bytes()
    )
    target = batch.folder / "marked.jsonl"
    assert batch.cli("batch", "-m", batch.model, "-i", source, "-o", target).code == 0
    assert target.read_bytes() == (batch.folder / "plain.jsonl").read_bytes()


def test_files_that_cannot_be_used(batch: Folder, words: Path) -> None:
    one = request("one")
    source, target = batch.folder / "in.jsonl", batch.folder / "out.jsonl"

    def refused(*flags: Any, requests: list[Any] | None = None) -> str:
        written(source, [one] if requests is None else requests)
        found = batch.cli("batch", "-m", *map(str, (words, *flags)))
        assert found.code == 2 and found.err.count("\n") == 1, found.err
        return str(found.err)

    given = ("-i", source, "-o", target)
    assert "give -i FILE" in refused()
    assert "-o -: must be a file" in refused("-i", source, "-o", "-")
    assert "-i -: must be a file" in refused("-i", "-", "-o", target)
    assert "No such file" in refused("-i", batch.folder / "none", "-o", target)
    assert "has no requests" in refused(*given, requests=[""])
    assert "lines 1 and 3 have the same custom_id 'one'" in refused(
        *given, requests=[one, request("two"), one]
    )
    assert "give another for the results" in refused("-i", source, "-o", source)
    assert "no regular file" in refused("-i", source, "-o", batch.folder)
    assert "no regular file" in refused("-i", source, "-o", "/dev/full")
    assert "cores" in refused(*given, "--instances", "99")
    assert not target.exists()
    target.write_text("notes of mine\n")
    assert "is no file of results" in refused(*given)
    assert target.read_text() == "notes of mine\n"
    target.unlink()
    batch.run([one])
    assert "results of other requests" in refused(*given, requests=[request("one", max_tokens=7)])
    with target.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process writes it" in refused(*given)
    assert len(batch.results()) == 1


@pytest.mark.parametrize("url", [CHAT, MESSAGES])  # answers with and without a fingerprint
@pytest.mark.parametrize("more", [0, 1], ids=["complete", "incomplete"])
def test_results_of_another_setting_are_refused(
    batch: Folder, url: str, more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request("one", url), request("two", url)]
    batch.run(requests[: 2 - more], "out.jsonl", "--quant", "int8")
    target, note = batch.folder / "out.jsonl", batch.folder / "out.jsonl.setting.json"
    before = target.read_bytes()

    def refused(*flags: str) -> str:
        found = batch.run(requests, "out.jsonl", *flags)
        assert found.code == 2 and found.err.count("\n") == 1, found.err
        assert target.read_bytes() == before
        return str(found.err)

    end = " is given: give the same again, or another file with -o"
    assert f"made with --quant int8, and no --quant{end}" in refused()
    assert f"made with --quant int8, and --quant 4bit{end}" in refused("--quant", "4bit")
    attention = refused("--quant", "int8", "--attention", "aet")
    assert f"made with no --attention, and --attention aet{end}" in attention
    ignored = refused("--quant", "int8", "--allow-unknown-fields")
    assert f"made with no --allow-unknown-fields, and --allow-unknown-fields{end}" in ignored
    with monkeypatch.context() as patch:
        patch.setenv("SUFFICE_ISA", "base")
        patch.setattr(native, "isa", lambda: "base")
        assert f"SUFFICE_ISA=base{end}" in refused("--quant", "int8")
    model, batch.model = batch.model, shutil.copytree(batch.model, tmp_path / "other")
    assert f"made with -m {model}" in refused("--quant", "int8")
    batch.model = model

    kept = note.read_text()
    note.write_text("{")
    assert "does not say what out.jsonl was made with" in refused("--quant", "int8")
    note.unlink()
    missing = "put out.jsonl.setting.json back next to it, give another file with -o, or remove it"
    assert missing in refused("--quant", "int8") and not note.exists()
    note.write_text(kept)
    same = ("--quantization", "int8", "-t", "1", "-np", "3")
    assert batch.run(requests, "out.jsonl", *same).code == 0
    assert len(batch.results()) == 2
    if more:
        assert note.read_text() == kept


def test_changed_files_of_a_model_are_another_setting(batch: Folder, tmp_path: Path) -> None:
    batch.model = shutil.copytree(batch.model, tmp_path / "changing")
    batch.run([request("one")])
    config = batch.model / "config.json"
    config.write_text(config.read_text() + " ")
    found = batch.run([request("one")])
    assert found.code == 2 and "made with other files or options of the model (fp_" in found.err


def started(batch: Folder, target: Path) -> subprocess.Popen[bytes]:
    """Start a run and return once some results are there."""
    program = [sys.executable, "-c", "from suffice.cli import main; main()"]
    command = [*program, "batch", "-m", str(batch.model), "-np", "2"]
    files = ["-i", str(batch.folder / "in.jsonl"), "-o", str(target)]
    process = subprocess.Popen([*command, *files], stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (target.exists() and target.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.002)
    return process


_whole: list[bytes] = []  # the results of a run that nothing stopped


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_keeps_what_it_has(batch: Folder, how: signal.Signals) -> None:
    requests = [request(f"r{i}", max_tokens=40) for i in range(40)]
    if not _whole:
        batch.run(requests, "whole.jsonl")
        _whole.append((batch.folder / "whole.jsonl").read_bytes())
    written(batch.folder / "in.jsonl", requests)
    target = batch.folder / "out.jsonl"
    process = started(batch, target)
    os.kill(process.pid, how)
    _, said = process.communicate(timeout=60)
    kept = target.read_bytes()
    done = kept.count(b"\n")
    assert 3 <= done < 40, "the run was to be stopped in the middle"
    if how != signal.SIGKILL:
        assert process.returncode == (130 if how == signal.SIGINT else 143)
        assert f"interrupted: {done} of 40 done; the same command goes on".encode() in said
    end = time.monotonic() + 30
    while (found := batch.run(requests)).code and time.monotonic() < end:
        assert "another process" in found.err  # the engine that was left has not ended yet
        time.sleep(0.1)
    assert f"{40 - done} answered, {done} done before" in found.err
    assert target.read_bytes() == _whole[0]
