"""`suffice batch --ray` and `suffice.integrations.ray`, with a node killed. Tests ray_batch.py."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serve.raylets import Raylets
from commands import Cli
from serving import ENGINE
from suffice.errors import InputError
from suffice.serve import batch as batches
from suffice.serve.batch_file import Requests, Results
from suffice.serve.batch_setting import Setting
from suffice.serve.settings import Settings

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
PLACES = 4


def request(number: int, **body: Any) -> dict[str, Any]:
    url = URLS[number % 4]
    talk = [{"role": "user", "content": f"hello {number}"}]
    given: dict[str, Any] = {
        URLS[0]: {"messages": talk, "max_tokens": 12, "temperature": 1.0},
        URLS[1]: {"prompt": f"once {number}", "max_tokens": 12},
        URLS[2]: {"input": f"hello {number}", "max_output_tokens": 12},
        URLS[3]: {"messages": talk, "max_tokens": 12},
    }[url]
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {**given, **body}}


def written(path: Path, requests: list[Any]) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in requests]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_the_bytes_are_those_of_one_machine(
    cli: Cli, raylets: Raylets, words: Path, tmp_path: Path
) -> None:
    requests = [
        *[request(number) for number in range(16)],
        "{not JSON",
        request(16, temprature=1),
        request(20, stream=True),
        {**request(24), "url": "/v1/chat"},
    ]
    source = written(tmp_path / "in.jsonl", requests)

    def run(name: str, *flags: str) -> tuple[Any, Path]:
        target = tmp_path / name
        common = ("batch", "-m", words, "-i", source, "-o", target, "-np", str(PLACES))
        return cli(*common, *flags), target

    local, alone = run("local.jsonl")
    assert local.code == 0, local.err
    found, target = run("ray.jsonl", "--ray", raylets.address)
    assert found.code == 0 and "20 requests: 16 answered, 4 refused" in found.err, found.err
    assert target.read_bytes() == alone.read_bytes()
    lines = alone.read_bytes().splitlines(keepends=True)
    target.write_bytes(lines[3] + lines[1] + lines[7][:20])  # as an interruption leaves it
    found, _ = run("ray.jsonl", "--ray", raylets.address)
    assert "14 answered, 4 refused, the first " in found.err, found.err
    assert target.read_bytes() == alone.read_bytes()
    before = lines[0] + lines[16]  # an answer, and the line that is no JSON
    target.write_bytes(before)
    found, _ = run("ray.jsonl", "--ray", raylets.address, "--quant", "int8")
    assert found.code == 2 and "made with no --quant, and --quant int8 is given" in found.err
    assert found.err.count("\n") == 1 and target.read_bytes().startswith(before)
    assert target.read_bytes().count(b'"status_code"') == 1


def test_faults_are_one_line(cli: Cli, raylets: Raylets, words: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [request(0)])
    files = ("-i", source, "-o", tmp_path / "out.jsonl")

    def refused(*flags: Any) -> str:
        found = cli("batch", *files, *flags)
        assert found.code == 2 and found.err.count("\n") == 1, found.err
        return str(found.err)

    here = ("--ray", raylets.address)
    assert "no node of the cluster has more than 1" in refused("-m", words, "-t", "3", *here)
    assert "unknown quant 'int9'" in refused("-m", words, "--quant", "int9", *here)
    assert "none-such" in refused("-m", tmp_path / "none-such", *here)


def test_a_killed_node_costs_what_ran_on_it(raylets: Raylets, words: Path, tmp_path: Path) -> None:
    import ray

    from suffice.serve.ray_batch import on_cluster

    count, at_once = 200, batches.AHEAD * PLACES
    source = written(tmp_path / "in.jsonl", [request(number) for number in range(count)])
    submitted = tmp_path / "submitted"
    settings = Settings(
        model=str(words),
        engine=ENGINE,
        options={
            "model": str(words),
            "vocabulary": 1000,
            "step_seconds": 0.02,
            "log": str(submitted),
        },
        max_num_seqs=PLACES,
        page=False,
    )
    requests = Requests(source)

    def run(name: str, answer: batches.Answer) -> bytes:
        target = tmp_path / name
        with Results(target, requests, Setting(model=str(words))) as results:
            counts = batches.run(answer, requests, results, lambda counts: None)
        assert counts.answered == count
        return target.read_bytes()

    alone = run("alone.jsonl", batches.here(settings))
    submitted.unlink()
    busy = threading.Event()

    def kill() -> None:
        target = tmp_path / "ray.jsonl"
        while not target.exists() or target.read_bytes().count(b"\n") < count // 3:
            time.sleep(0.01)
        raylets.kill(next(iter(raylets.nodes)))
        busy.set()

    killer = threading.Thread(target=kill)
    killer.start()
    ray.shutdown()
    found = run("ray.jsonl", on_cluster(settings, raylets.address, threads=1, most=None))
    killer.join()
    assert busy.is_set() and found == alone
    runs = Counter(submitted.read_text().split())
    assert len(runs) == count and max(runs.values()) <= 2
    assert sum(runs.values()) - count <= at_once
    raylets.add()


def test_python(raylets: Raylets, words: Path, tmp_path: Path) -> None:
    import ray

    from suffice.integrations.ray import Answer, batch

    with pytest.raises(InputError, match="unknown option 'quantizaton'"):
        batch([], model=str(words), quantizaton="int8")
    with pytest.raises(InputError, match="the same custom_id 'r1'"):
        batch([request(1), request(1)], model=str(words))
    requests: list[dict[str, Any]] = [request(0), {"method": "GET"}, request(2), request(3)]
    found = batch(requests, model=str(words), address=raylets.address, threads=1)
    assert [each["custom_id"] for each in found] == ["r0", None, "r2", "r3"]
    assert found[1]["error"]["code"] == "invalid_line" and found[2]["response"]["body"]["output"]
    ray.init(address=raylets.address, log_to_driver=False, logging_level="error")
    try:
        source = written(tmp_path / "in.jsonl", requests)
        rows = ray.data.read_text(str(source)).map_batches(
            Answer,
            fn_constructor_kwargs={"model": str(words), "threads": 1},
            batch_size=2,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        results = [json.loads(row["result"]) for row in rows.take_all()]
    finally:
        ray.shutdown()
    assert [each["custom_id"] for each in results] == ["r0", None, "r2", "r3"]
    assert [results[at] for at in (0, 2, 3)] == [found[at] for at in (0, 2, 3)]
