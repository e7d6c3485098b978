"""Loads: the patterns, and files with their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffice.errors import InputError
from suffice.plan.trace import Arrival, Lengths, made, read, write


def test_a_rate_is_kept_on_average() -> None:
    for pattern in ("poisson", "bursts"):
        found = made(pattern, 10, 4000, Lengths(), burst=8)
        assert 350 < found[-1].arrival < 450
        assert found == made(pattern, 10, 4000, Lengths(), burst=8)
        assert found != made(pattern, 10, 4000, Lengths(), seed=1, burst=8)


def test_a_burst_comes_together() -> None:
    times = [each.arrival for each in made("bursts", 10, 24, Lengths(), burst=8)]
    assert len(set(times)) == 3 and times == sorted(times)


def test_lengths_vary_by_their_share_and_prefixes_take_turns() -> None:
    found = made("poisson", 10, 500, Lengths(100, 50, 0.2, prefix_len=64, prefixes=2))
    assert {each.prefix for each in found} == {0, 1}
    assert all(144 <= each.prompt_tokens <= 184 for each in found)
    assert all(40 <= each.output_tokens <= 60 for each in found)
    assert len({each.prompt_tokens for each in found}) > 20


def test_a_file_is_read_as_it_was_written_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    arrivals = [Arrival(2.5, 10, 3), Arrival(0, 20, 4, "a", 15, priority=-1, key="k")]
    write(path, arrivals)
    assert read(path) == arrivals[::-1]


def test_times_count_from_the_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Arrival(1764000000.5, 10, 3), Arrival(1764000000, 10, 3)])
    assert [each.arrival for each in read(path)] == [0.0, 0.5]
    write(path, [Arrival(1764000000e9, 10, 3), Arrival(1764000001e9, 10, 3)])
    with pytest.raises(
        InputError, match=r"1e\+09 seconds lie between its arrivals: at most 1e\+08"
    ):
        read(path)


GOOD = '{"arrival": 0, "prompt_tokens": 5, "output_tokens": 5'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "line 2: JSON is malformed"),
        (b"\xff", "line 2: "),
        ("[1]", "line 2: Expected `object`, got `array`"),
        ('{"arrival": 0, "prompt_tokens": 5}', "missing required field `output_tokens`"),
        (GOOD + ', "outputs": 1}', "unknown field `outputs`"),
        (GOOD.replace("5", "0", 1) + "}", "line 2: prompt_tokens=0: must be in"),
        (GOOD.replace("0", "-1", 1) + "}", "line 2: arrival=-1.0: must be seconds, at least 0"),
        (GOOD + ', "prefix_tokens": 3}', "prefix_tokens without prefix"),
        (GOOD + ', "prefix": "a"}', "prefix without prefix_tokens"),
        (GOOD + ', "prefix": "a", "prefix_tokens": 6}', "must be at most prompt_tokens=5"),
        (GOOD.replace("5", "1.5", 1) + "}", "Expected `int`, got `float`"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str | bytes, complaint: str) -> None:
    path = tmp_path / "trace.jsonl"
    data = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(GOOD.encode() + b"}\n" + data + b"\n")
    with pytest.raises(InputError) as error:
        read(path)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_a_file_without_requests_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(InputError, match="has no requests"):
        read(tmp_path / "empty")
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"arrivals": "poison"}, "arrivals='poison': .* Did you mean 'poisson'"),
        ({"rate": 0}, "rate=0: must be a number of requests per second above 0"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"requests": 0}, "requests=0: must be a whole number in"),
        ({"burst": 0}, "burst=0: must be a whole number in"),
    ],
)
def test_bad_numbers_are_refused(change: dict[str, float], complaint: str) -> None:
    given = {"arrivals": "poisson", "rate": 1, "requests": 1, "lengths": Lengths(), **change}
    with pytest.raises(InputError, match=complaint):
        made(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"input_len": 0},
        {"output_len": 0},
        {"range_ratio": 1.0},
        {"prefix_len": -1},
        {"prefixes": 0},
    ],
)
def test_bad_lengths_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        Lengths(**change)  # type: ignore[arg-type]
