"""The command line: what it prints where, its exit codes, one line for every bad input.

Also tests environment.py.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from commands import SUMMARY, Cli, Ran, complaint
from fake_engine import scripted
from suffice.cli.flags import members
from suffice.cli.options import BenchFlags, ModelFlags, SamplingFlags, speculation
from suffice.cli.output import markdown
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.options import EngineOptions
from suffice.speculate.ngram import NGram
from suffice.speculate.none import NoDrafts

PROGRAM = [sys.executable, "-c", "from suffice.cli import main; main()"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], 'no prompt: suffice run "your prompt", or - to read standard input'),
        (["run", ""], "the prompt is empty: give some text"),
        (["run", "-"], "the prompt is empty: give some text"),
        (["run", "a", "-p", "b"], "2 prompts were given, 'a' and -p 'b': give one"),
        (["run", "a", "-f", "b"], "2 prompts were given, 'a' and -f b: give one"),
        (
            ["run", "a", "-p", "b", "--file", "c"],
            "3 prompts were given, 'a' and -p 'b' and -f c: give one",
        ),
        (["run", "-f", "no.txt"], "-f no.txt: cannot be read: No such file or directory"),
        (
            ["run", "a", "--raw", "-sys", "b"],
            "--system-prompt needs the chat template, which --raw leaves out",
        ),
        (["run", "a", "--top-k", "x"], "Invalid value for '--top-k': 'x' is not a whole number"),
        (["run", "a", "--temp", "hot"], "Invalid value for '--temp' / '--temperature': 'hot' is"),
        (["run", "a", "--attention", "exactt"], "unknown attention 'exactt'. Did you mean 'exact'"),
        (["run", "a", "--policy", "h3"], "unknown policy 'h3'. Known: "),
        (["run", "a", "--growth", "bmc:row=3"], "growth 'bmc' has no option 'row'. Did you mean"),
        (["run", "a", "--quant", "int9"], "unknown quant 'int9'. Did you mean 'int8'?"),
        (["run", "a", "--dtype", "float8"], "unknown dtype 'float8'. Did you mean 'float32'?"),
        (
            ["run", "a", "--kv-cache-dtype", "int8", "-ctv", "float32"],
            "--kv-cache-dtype int8, -ctv float32: contradict each other; give -ctk and -ctv alone",
        ),
        (
            ["run", "a", "-ctk", "q8_0"],
            "-ctk q8_0: there is no q8_0 (a scale for every 32 values) here; the nearest is int8",
        ),
        (
            ["run", "a", "--speculative-config", '{"method": "nne"}'],
            "unknown speculator 'nne'. Did you mean 'none'? "
            "Known: dflash, draft_model, eagle3, mtp, ngram, none, self, suffix",
        ),
        (
            ["run", "a", "--speculate", '{"method": "ngram", "num_speculative_tokens": 99}'],
            "speculator 'ngram': num_speculative_tokens=99: must be between 1 and 31",
        ),
        (
            ["run", "a", "--speculative-config", '{"num_speculative_tokens": 9}'],
            "speculative_config: needs 'method'. Known: dflash, draft_model, eagle3, mtp, ngram, "
            "none, self, suffix",
        ),
        (
            ["run", "a", "--speculative-config", "{method: none}"],
            "--speculative-config={method: none}: is not JSON (Expecting property name enclosed",
        ),
        (
            ["run", "a", "--speculative-config", '[{"method": "none"}]'],
            '--speculative-config=[{"method": "none"}]: is not JSON (not an object); it looks like',
        ),
        (
            ["run", "a", "--speculative-config", '{"method":' * 3000],
            "--speculative-config=" + ('{"method":' * 20) + "...: is not JSON (a number or a",
        ),
        (["run", "caf\udcff"], "the prompt is not valid text (UTF-8): byte 0xff at character 4"),
        (["run", "a", "-sys", "\udcff"], "the system prompt is not valid text (UTF-8): byte 0xff"),
        (["chat", "-sys", "\udcff"], "the system prompt is not valid text (UTF-8): byte 0xff"),
        (["run", "a", "--stop", "\udcff"], "stop: '\\udcff' is not valid text (UTF-8): byte 0xff"),
        (
            ["run", "a"],
            "model 'smollm2-135m' is not on this machine: run `suffice pull smollm2-135m`",
        ),
        (["run", "a", "-m", "smollm"], "unknown model 'smollm'. Did you mean 'smollm2-135m'? Know"),
        (["pull"], "Missing argument"),
        (["pull", "gemma"], "unknown model 'gemma'. Did you mean 'gemma3-270m'? Known: "),
        (["chta"], "No such command 'chta'."),
        *(
            (
                [*command, "--speculate", "ngram"],
                f"--speculate=ngram: {name} decodes given tokens, so there is nothing to draft: "
                "leave it out; run, chat, eval latency, longbench and ruler generate",
            )
            for name, command in {
                "bench": ["bench"],
                "eval perplexity": ["eval", "perplexity"],
                "eval tasks": ["eval", "tasks"],
                "calibrate": ["calibrate", "--text", "some.txt"],
            }.items()
        ),
        (["bench", "-d", "0,x"], "-d/--n-depth=0,x: 'x' must be a whole number of at least 0"),
        (["bench", "-p", "-3"], "-p/--n-prompt=-3: '-3' must be a whole number of"),
        (["bench", "-n", "16,a"], "-n/--n-gen=16,a: 'a' must be a whole number of at least 0"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure: give -p or -n above 0 and at least"),
        (["bench", "-r", "0"], "-r/--repetitions=0: must be at least 1"),
        (["bench", "-o", "xml"], "unknown output 'xml'. Known: csv, json, md"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: list[str], message: str) -> None:
    assert complaint(cli(*arguments)).startswith(message)


def test_no_space_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10**7))
    message = complaint(cli("pull", "smollm2-135m"))
    assert re.fullmatch(
        r"not enough disk space for smollm2-135m in .*: 284 MB needed, 10 MB free; "
        r"set SUFFICE_CACHE to move it",
        message,
    )


def test_models_that_cannot_be_used(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    def run(model: object, *arguments: str) -> str:
        return complaint(cli("run", "hello", "--raw", "-m", str(model), *arguments))

    assert str(tmp_path / "no" / "model.gguf") in run(tmp_path / "no" / "model.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(40))
    assert str(tmp_path / "broken.gguf") in run(tmp_path / "broken.gguf")
    assert "config.json" in run(tmp_path)
    folder = tmp_path / "copy"
    folder.mkdir()
    assert "Mamba" in run(tiny.changed(checkpoint, folder, architectures=["MambaForCausalLM"]))
    message = run(tiny.changed(checkpoint, folder, hidden_act="softplus"))
    assert "config field 'hidden_act' 'softplus'" in message
    weights = tiny.changed(checkpoint, folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert str(folder) in run(folder)


def test_what_does_not_fit_the_model(cli: Cli, checkpoint: Path) -> None:
    def run(*arguments: str) -> str:
        return complaint(cli("run", "--raw", "-m", str(checkpoint), *arguments))

    assert "the prompt has" in run("-c", "8", "a prompt of more tokens than that")
    assert run("-c", "300000", "a").startswith("-c 300000: must not be more than 200000")


def test_too_little_memory_for_the_cache(cli: Cli, checkpoint: Path) -> None:
    ran = cli("run", "--raw", "-m", str(checkpoint), "--kv-cache-bytes", "1KiB", "hello")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("suffice: error: ")
    assert "1024" in ran.err


def test_a_run_prints_text_and_a_summary(cli: Cli, checkpoint: Path) -> None:
    """As a process of its own, and the same in this one."""
    command = ["run", "--raw", "-m", str(checkpoint), "hello", "-n", "5", "--seed", "1"]
    command += ["--ignore-eos"]
    first = subprocess.run([*PROGRAM, *command], capture_output=True, check=True)
    assert first.stdout.decode() == cli(*command).out != "\n"
    said = first.stderr.decode().strip()
    assert SUMMARY.fullmatch(said) and len(said.splitlines()) <= 2
    assert "decode 4 tokens" in said and "MiB, read 100 %" in said
    assert "weights float32 | " in said.replace("\n", " | ")


def test_ctrl_c_keeps_what_there_is(checkpoint: Path) -> None:
    command = [
        *PROGRAM,
        "run",
        "--raw",
        "-m",
        str(checkpoint),
        "hello",
        "--ignore-eos",
        "-n",
        "3000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        text = child.stdout.read(50)
        child.send_signal(signal.SIGINT)
        text += child.stdout.read()
        errors = child.stderr.read().decode()
    assert child.returncode == 130
    assert text.endswith(b"\n") and len(text) > 50
    assert SUMMARY.fullmatch(errors.strip())


def test_a_closed_pipe_is_no_error(checkpoint: Path) -> None:
    command = [*PROGRAM, "run", "--raw", "-m", str(checkpoint), "hello", "-n", "-1", "--ignore-eos"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        child.stdout.read(10)
        child.stdout.close()
        errors = child.stderr.read().decode()
    assert "Traceback" not in errors and "Exception ignored" not in errors


def test_the_text_ends_where_it_was_interrupted(cli: Cli, fake: Callable[..., LLM]) -> None:
    llm = fake(scripted(3, 4, 8, 6, 3), template=False)
    llm.runner.interrupt_after = 2
    ran = cli("run", "c", "--temp", "0")
    assert (ran.code, ran.out) == (130, "abcx\n")
    assert SUMMARY.fullmatch(ran.err.strip())


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_the_prompt_may_come_from_standard_input(
    cli: Cli, fake: Callable[..., LLM], arguments: tuple[str, ...]
) -> None:
    fake(scripted(3, 4), template=False)
    assert cli("run", *arguments, "--temp", "0", stdin="c").out == "abc\n"


def test_speculation_may_be_json_or_a_name() -> None:
    for text in ('{"method": "none"}', "none"):
        assert (
            Config.create("m", speculative_config=speculation(text)).speculative_config
            == NoDrafts()
        )
    ngram = NGram(num_speculative_tokens=5, prompt_lookup_max=3)
    for text in (
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}',
        "ngram:5,prompt_lookup_max=3",
    ):
        assert Config.create("m", speculative_config=speculation(text)).speculative_config == ngram


@pytest.mark.parametrize(
    ("given", "dtype"), [("f16", "float16"), ("bf16", "bfloat16"), ("f32", "float32")]
)
def test_types_may_have_llama_cpps_names(given: str, dtype: str) -> None:
    flags = (
        ModelFlags(cache_type_k=given),
        ModelFlags(EngineOptions("m", kv_cache_dtype=given), given, dtype),
    )
    assert [one.cache_dtype() for one in flags] == [dtype, dtype]


def test_keys_and_values_may_have_a_type_each() -> None:
    flags = (
        ModelFlags(cache_type_k="int8", cache_type_v="kmeans4"),
        ModelFlags(EngineOptions("m", kv_cache_dtype="bf16/kmeans4")),
        ModelFlags(cache_type_v="kmeans4"),
    )
    expected = ["int8/kmeans4", "bfloat16/kmeans4", "kmeans4"]
    assert [one.cache_dtype() for one in flags] == expected


def test_the_prompt_may_come_from_a_file(
    cli: Cli, fake: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("c\n\n")
    llm = fake(scripted(3), template=False)
    assert cli("run", "-f", str(path), stdin="ab").code == 0
    monkeypatch.setenv("SUFFICE_PROMPT", "x")
    assert cli("run", "--file", str(path)).code == 0, "the environment gives way"
    encode = llm.tokenizer.encode
    assert llm.runner.prefilled == 2 * [encode("c\n")]
    path.write_bytes(b"caf\xe9\n")
    message = f"-f {path}: is not text (UTF-8): byte 0xe9 at offset 3"
    assert complaint(cli("run", "-f", str(path))) == message
    path.write_bytes(b" \n")
    assert complaint(cli("run", "-f", str(path))).endswith("is empty: give one with some text")


def test_the_chat_template_is_used_unless_refused(cli: Cli, fake: Callable[..., LLM]) -> None:
    llm = fake(scripted())
    cli("run", "ab", "-sys", "x", "--temp", "0")
    cli("run", "ab", "--raw", "--temp", "0")
    encode = llm.tokenizer.encode
    assert llm.runner.prefilled == [encode("x\nab\nE"), encode("ab")]


def test_the_environment_sets_flags_and_the_command_line_wins(
    cli: Cli, fake: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(scripted(3, 4, 8, 6, 3), template=False)
    monkeypatch.setenv("SUFFICE_TEMP", "0")
    monkeypatch.setenv("SUFFICE_MAX_TOKENS", "2")
    assert cli("run", "c").out == "abc\n"
    assert cli("run", "c", "-n", "3").out == "abcx\n"
    monkeypatch.setenv("SUFFICE_TOP_K", "-9")
    assert complaint(cli("run", "c")).startswith("SUFFICE_TOP_K=-9: must be")
    assert complaint(cli("run", "c", "--top-k", "-8")).startswith("--top-k -8: must be")


def test_the_prompt_of_the_environment_gives_way(
    cli: Cli, fake: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake(scripted(), template=False)
    monkeypatch.setenv("SUFFICE_PROMPT", "ab")
    assert cli("run", "c").code == cli("run").code == cli("run", "-p", "x").code == 0
    encode = llm.tokenizer.encode
    assert llm.runner.prefilled == [encode("c"), encode("ab"), encode("x")]
    monkeypatch.setenv("SUFFICE_SYSTEM_PROMPT", "d")
    assert cli("run", "c", "--raw").code == 0
    assert llm.runner.prefilled[-1] == encode("c")


def test_a_variable_is_one_stop_string(
    cli: Cli, fake: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(scripted(4, 2, 8, 2, 3), template=False)  # "c x ab"
    monkeypatch.setenv("SUFFICE_STOP", "x ab")
    assert cli("run", "c", "--temp", "0").out == "c \n"
    assert cli("run", "c", "--temp", "0", "--stop", " x", "--stop", "q").out == "c\n"


def test_a_misspelt_variable_is_pointed_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFICE_TOPK", "3")
    monkeypatch.setenv("SUFFICE_QQQQQQQ", "3")
    assert cli("info").err.splitlines() == [
        "suffice: warning: no flag is set by the variable 'SUFFICE_QQQQQQQ'.",
        "suffice: warning: no flag is set by the variable 'SUFFICE_TOPK'. "
        "Did you mean 'SUFFICE_TOP_K'?",
    ]


def test_an_empty_instruction_set_is_none() -> None:
    code = "from suffice import native; print(native.isa() == native.isas()[0])"
    environment = {**os.environ, "SUFFICE_ISA": ""}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, capture_output=True).stdout == b"True\n"


def test_every_long_flag_has_its_variable() -> None:
    for group in (ModelFlags, SamplingFlags, BenchFlags):
        for member in members(group).values():
            for declared in member.values():
                names = [name.partition("/")[0] for name in declared.flag.names]
                long = [name for name in names if name.startswith("--")]
                expected = ["SUFFICE_" + name[2:].upper().replace("-", "_") for name in long]
                assert long and declared.flag.variables == expected, declared.name


def test_the_version(cli: Cli) -> None:
    from suffice import __version__

    assert cli("--version") == Ran(0, f"suffice {__version__}\n", "")


def test_no_command_shows_the_help(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0
    assert all(name in ran.out for name in ("run", "chat", "bench", "pull", "info"))


def test_tables_are_aligned() -> None:
    assert markdown(["name", "n"], [["a", 1], ["long name", 200]]).splitlines() == [
        "| name      |   n |",
        "| --------- | --: |",
        "| a         |   1 |",
        "| long name | 200 |",
    ]
