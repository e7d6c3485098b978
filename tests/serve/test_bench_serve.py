"""`suffice bench serve`: serving_client.py, serving_load.py, serving_report.py, bench_serve.py."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Cli
from serving import Served, served
from suffice.errors import InputError
from suffice.eval import serving_client, serving_load, serving_report
from suffice.eval.serving_client import Exchange, Target
from suffice.eval.serving_load import Load


@pytest.fixture(scope="module")
def quick(words: Path, engine_path: None) -> Iterator[Served]:
    """A server with room for long prompts, which takes random token ids."""
    with served(words, options={"context": 10_000, "vocabulary": 10_000}) as found:
        yield found


def ran(server: Served, load: Load) -> list[Exchange]:
    return asyncio.run(serving_load.run(Target.of(server.url), "scripted", load, 30.0))


def test_every_request_is_counted(quick: Served) -> None:
    load = Load(requests=12, input_len=20, output_len=6, concurrency=4)
    found = ran(quick, load)
    figures = serving_report.summary(found, {"ttft": 1e6})
    assert [each.error for each in found] == [None] * 12
    assert figures["total_input_tokens"] == 240 and figures["total_output_tokens"] == 72
    assert figures["request_goodput"] == figures["request_throughput"]
    assert figures["p50_ttft_ms"] <= figures["p99_e2el_ms"]


def test_conversations_grow(quick: Served) -> None:
    load = Load(dataset="multi-turn", requests=2, turns=3, input_len=4, output_len=3, concurrency=1)
    found = ran(quick, load)
    prompts = [each.prompt_tokens for each in found]
    assert len(prompts) == 6
    assert prompts[:3] == sorted(set(prompts[:3])) and prompts[3:] == sorted(set(prompts[3:]))


def test_no_more_run_than_allowed_and_a_rate_is_kept(
    quick: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, sent = 0, 0, []

    async def counted(*arguments: Any) -> Exchange:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        sent.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        under_way -= 1
        return Exchange(0.0, [1.0], 1.0, 1)

    monkeypatch.setattr(serving_load, "exchange", counted)
    ran(quick, Load(requests=20, concurrency=3))
    assert most == 3
    sent.clear()
    ran(quick, Load(requests=20, rate=200.0, concurrency=None))
    assert len(sent) == 20 and sent[-1] - sent[0] > 0.02


def test_the_same_seed_sends_the_same() -> None:
    load = Load(requests=5, range_ratio=0.5, input_len=100, output_len=50)
    talks = serving_load.conversations(load)
    assert talks == serving_load.conversations(load)
    lengths = {len(talk.turns[0]) for talk in talks}
    assert len(lengths) > 1 and all(50 <= each <= 150 for each in lengths)
    other = serving_load.conversations(serving_load.warm_up(load, 5))
    assert {talk.turns for talk in other}.isdisjoint({talk.turns for talk in talks})


def test_prompts_share_their_beginnings() -> None:
    load = Load(dataset="shared-prefix", requests=6, prefix_len=8, prefixes=2, input_len=4)
    prompts = [talk.turns[0] for talk in serving_load.conversations(load)]
    assert len({prompt[:8] for prompt in prompts}) == 2
    assert len({prompt[8:] for prompt in prompts}) == 6


@pytest.mark.parametrize("dataset", ["spec-bench", "speed-bench"])
def test_files_of_questions(tmp_path: Path, quick: Served, dataset: str) -> None:
    file = tmp_path / "questions.jsonl"
    turns = [["one", "two"], ["three"]]
    if dataset == "spec-bench":
        said: list[dict[str, object]] = [{"turns": each} for each in turns]
    else:
        said = [{"messages": [{"role": "user", "content": one} for one in each]} for each in turns]
    rows = [{"question_id": at, "category": "qa", **own} for at, own in enumerate(said)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    load = Load(dataset=dataset, file=file, requests=4, output_len=2)
    talks = serving_load.conversations(load)
    assert sorted(talk.turns for talk in talks) == [("one", "two")] * 2 + [("three",)] * 2
    assert len(ran(quick, load)) == 6
    for text in ("[]", "{}", json.dumps(rows[0] | {"turns": [1]}), ""):
        file.write_text(text)
        with pytest.raises(InputError):
            serving_load.conversations(load)


def test_figures_of_known_times() -> None:
    first = Exchange(0.0, [0.1, 0.2, 0.4], 0.4, tokens=3, prompt_tokens=7)
    second = Exchange(0.1, [0.6], 0.6, tokens=1, prompt_tokens=5)
    failed = Exchange(0.0, error="500: no", ended=1.0)
    found = serving_report.summary([first, second, failed], {"ttft": 200.0, "tpot": 160.0})
    assert (found["completed"], found["errors"], found["first_error"]) == (2, 1, "500: no")
    assert found["duration"] == 1.0 and found["output_throughput"] == 4.0
    assert found["total_token_throughput"] == 16.0
    assert found["mean_ttft_ms"] == pytest.approx(300) and found["p50_tpot_ms"] == pytest.approx(75)
    assert found["longest_gap_ms"] == pytest.approx(200)
    assert found["mean_itl_ms"] == pytest.approx(150) and found["request_goodput"] == 1.0
    assert serving_report.summary([failed], {}) == {
        "completed": 0,
        "errors": 1,
        "first_error": "500: no",
    }


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "IncompleteReadError"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops", "500: oops"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\ndata: [DONE]\n\n  ", "has no text"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {\n\n", "JSONDecodeError"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "no"}}\n\n', "'message': 'no'"),
        (b"nonsense\r\n\r\n", "IndexError"),
    ],
)
def test_bad_answers_are_errors(answer: bytes, error: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(10_000)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        target = Target.of(f"http://127.0.0.1:{listener.getsockname()[1]}")
        found = asyncio.run(serving_client.exchange(target, "/x", {}, 10.0))
        thread.join()
    assert found.error is not None and error in found.error


def test_a_slow_answer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Target.of(f"127.0.0.1:{listener.getsockname()[1]}")
        found = asyncio.run(serving_client.exchange(target, "/x", {}, 0.05))
    assert found.error == "no whole answer within 0.05 seconds"


def test_urls() -> None:
    assert Target.of("https://a.example/x/v1/") == Target("a.example", 443, "/x", True)
    assert Target.of("localhost:8000", "k") == Target("localhost", 8000, "", False, "k")
    for bad in ("ftp://a", "http://", "http://a:b"):
        with pytest.raises(InputError, match="--base-url"):
            Target.of(bad)


def test_the_command(cli: Cli, quick: Served) -> None:
    flags = ["--base-url", quick.url, "--num-prompts", "3", "--output-len", "4"]
    found = cli("bench", "serve", *flags, "-o", "json", "--goodput", "ttft:5000")
    assert found.code == 0, found.err
    figures = json.loads(found.out)
    assert figures["completed"] == 3 and figures["total_output_tokens"] == 12
    assert "| completed" in cli("bench", "serve", *flags).out
    assert "measuring scripted" in found.err


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--goodput", "speed:1"], "must be like ttft:500"),
        (["--dataset-name", "randm"], "Did you mean 'random'?"),
        (["--dataset-name", "spec-bench"], "need a file"),
        (["--num-prompts", "0"], "--num-prompts 0: must be at least 1"),
        (["--extra-body", "["], "must be a JSON object"),
        (["--request-rate", "0"], "must be more than 0"),
        (["-o", "xml"], "unknown output 'xml'"),
        (
            ["--base-url", "http://127.0.0.1:9"],
            "no server answers at 127.0.0.1:9: start `suffice serve`",
        ),
    ],
)
def test_bad_flags_are_one_line(cli: Cli, flags: list[str], part: str) -> None:
    found = cli("bench", "serve", *flags)
    assert found.code == 2 and part in found.err and found.err.count("\n") == 1
