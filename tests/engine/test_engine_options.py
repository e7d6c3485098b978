"""An engine option is declared in one place; everything else follows from it."""

import inspect
import subprocess
import sys
from typing import Any

import pytest

from suffice import LLM, Config
from suffice.engine.options import options
from suffice.errors import InputError

# Declares one more option in the source of `suffice.engine.options`, and nowhere else.
WITH_ONE_MORE = '''
import importlib.util, os, sys, types
from pathlib import Path

spec = importlib.util.find_spec("suffice.engine.options")
source = Path(spec.origin).read_text(encoding="utf-8")
before = "    max_num_seqs: int = _option("
assert before in source
more = """    made_up: int | None = _model(
        7, values.whole(3, none=True), "-mu --made-up", "Of no use."
    )
"""
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
exec(compile(source.replace(before, more + before), spec.origin, "exec"), vars(module))
'''


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", WITH_ONE_MORE + code],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def test_an_option_declared_once_is_one_of_config_and_llm() -> None:
    code = """
import inspect
from suffice import LLM, Config, errors
print(Config.create("m").made_up, Config.create("m", made_up="9").made_up)
print(inspect.signature(LLM).parameters["made_up"].default)
for make in (Config.create, LLM):
    try:
        make("m", made_up=2)
    except errors.InputError as error:
        print(error)
"""
    ran = run(code)
    refused = "made_up=2: must be a whole number of at least 3, or None\n"
    assert (ran.stdout, ran.stderr) == ("7 9\n7\n" + refused + refused, "")


def test_an_option_declared_once_is_a_flag_and_a_variable() -> None:
    code = """
from suffice.cli import options
from suffice.cli.commands import execute

def load(self, seed=None):
    print(self.config(seed).made_up)
    raise SystemExit(0)

options.ModelFlags.load = load
sys.exit(execute(sys.argv[1:] or ARGUMENTS))
"""
    shown = run("ARGUMENTS = ['run', '--help']" + code).stdout
    assert "-mu, --made-up N" in shown and "Of no use.  [default: 7]" in shown
    assert run("ARGUMENTS = ['run', 'Hi', '-mu', '11']" + code).stdout == "11\n"
    assert run("ARGUMENTS = ['run', 'Hi']" + code, SUFFICE_MADE_UP="12").stdout == "12\n"


def test_every_option_of_llm_is_one_of_config() -> None:
    names = list(options())
    assert [*inspect.signature(LLM).parameters] == names
    assert [*inspect.signature(Config.create).parameters] == names
    assert [*inspect.signature(Config).parameters] == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_dir": ""}, "prefix_dir='': must be a path"),
        (
            {"prefix_max_age": "soon"},
            "prefix_max_age='soon': must be seconds, or a time such as 5m",
        ),
        (
            {"prefix_disk_bytes": "much"},
            "prefix_disk_bytes='much': must be a positive number of bytes",
        ),
        (
            {"prefix_max_age": -1},
            "prefix_max_age=-1: must be seconds, or a time such as 30d, of at",
        ),
        ({"prefix_max_age": "-1d"}, "prefix_max_age='-1d': must be seconds, or a time such as 30d"),
        ({"prefix_max_age": "1d"}, "prefix_max_age='1d': needs prefix_dir (--prefix-dir)"),
        (
            {"prefix_disk_bytes": "1GiB"},
            "prefix_disk_bytes='1GiB': needs prefix_dir (--prefix-dir)",
        ),
        ({"prefix_disk_bytes": None}, "prefix_disk_bytes=None: needs prefix_dir (--prefix-dir)"),
        ({"prefix_secret": "file"}, "prefix_secret='file': needs prefix_dir (--prefix-dir)"),
    ],
)
def test_bad_options_of_prompts_on_disk_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Config.create("any", **options)
    assert str(error.value).startswith(message)
