"""The benchmark of sizes that people run: engines share codes, runs resume, rows say where."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import record, shaped_file, shaped_models
from benchmarks.peers import headline, install, sizes, sizes_report
from benchmarks.peers.client import EngineError
from benchmarks.peers.speed import tokens
from suffice import LLM
from workers import Inside

PROMPT = tokens(40, 320, 1)


class Llama:
    """Stands in for llama.cpp: its cache q8_0 is faster but for prompts."""

    breaks_at = 0

    def __init__(self, options: dict[str, Any]) -> None:
        assert options["flash"] == "on" and options["batch_rows"] <= options["rows"]

    def about(self) -> dict[str, Any]:
        return {"system": "made up"}

    def prefill(self, tokens: list[int], cache: str) -> dict[str, Any]:
        if len(tokens) == self.breaks_at:
            raise EngineError("ended by SIGILL")
        return {"seconds": len(tokens) / {"f16": 50, "q8_0": 40}[cache]}

    def decode(self, prompts: list[Any], count: int, cache: str) -> dict[str, Any]:
        return {"seconds": len(prompts) * count / {"f16": 10, "q8_0": 20}[cache], "tokens": []}


class Engines(Inside):
    started = 0

    def built(self, module: str, options: dict[str, Any]) -> Any:
        Engines.started += 1
        if module.endswith("llamacpp"):
            return Llama(options)
        return super().built(module, options | {"roof_bytes": 1 << 20})


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sizes, "FILES", tmp_path / "files")
    monkeypatch.setattr(sizes, "Worker", Engines)
    monkeypatch.setattr(install, "install", lambda package, jobs: None)

    def run(*flags: str) -> dict[str, Any]:
        given = ["--quick", "--rounds", "1", "--threads", "1", "--output", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["sizes", *given, *flags])
        Engines.started = 0
        assert sizes.main() == 0
        (path,) = tmp_path.glob("sizes_*.json")
        machine = json.loads(path.read_text())["machine"]
        processor = machine["cpu_family_model"].replace("/", "-")
        assert path.stem == f"sizes_{machine['isa']}_{processor}"
        return json.loads(path.read_text()) | {"table": path.with_suffix(".md").read_text()}

    return run


@pytest.mark.usefixtures("one_thread")
def test_a_quick_run_is_kept_case_by_case_and_goes_on(quick: Any, tmp_path: Path) -> None:
    found = quick("--types", "Q4_0", "--cases", "decode-0", "prompt-512")
    assert list(found["cells"]) == ["tiny Q4_0"] and Engines.started == 2
    before = found["cells"]["tiny Q4_0"]
    assert list(before) == ["decode-0", "prompt-512"]
    found = quick()
    assert list(found["cells"]) == [f"tiny {kind}" for kind in shaped_file.TYPES]
    cells = found["cells"]["tiny Q4_0"]
    assert set(cells) == set(sizes.CASES) and Engines.started == 6
    assert all(cells[case] == cell for case, cell in before.items()), "not measured again"
    cases_of = found["table"].partition("| geometric mean")[0].splitlines()
    lines = [line for line in cases_of if line.startswith("| tiny |")]
    assert len(lines) == len(shaped_file.TYPES) * len(sizes.CASES)
    for line in lines:
        peer, *_, machine = line.strip("| ").split(" | ")[3:]
        assert peer == ("50 (f16)" if "| prompt of" in line else "20 (q8_0)")
        assert machine == sizes_report.machine_of(found["machine"])
        assert line.count("| - |") == (2 if "| prompt of" in line else 0), "no share of the read"
    assert "no figure means anything" in found["table"]
    means = found["table"].partition("| model | file | geometric mean")[2].splitlines()
    assert [line.split(" | ")[1] for line in means[2:5]] == list(shaped_file.TYPES)
    assert not list((tmp_path / "files").iterdir())
    quick()
    assert Engines.started == 0
    quick("--again", "--types", "Q4_0", "--cases", "decode-0")
    assert Engines.started == 2


@pytest.mark.usefixtures("one_thread")
def test_a_case_that_fails_has_a_reason_and_is_tried_again(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--types", "Q8_0", "--cases", "decode-0", "prompt-512", "prompt-2048")
    with monkeypatch.context() as broken:
        broken.setattr(Llama, "breaks_at", 16)
        found = quick(*flags)
    assert list(found["cells"]["tiny Q8_0"]) == ["decode-0", "prompt-2048"]
    assert "Not measured: tiny Q8_0, prompt of 512: ended by SIGILL." in found["table"]
    assert Engines.started == 4, "the engines start again for what follows"
    found = quick(*flags)
    assert "prompt-512" in found["cells"]["tiny Q8_0"] and not found["refused"]


def test_settings_share_codes_and_answer_as_alone(tmp_path: Path, one_thread: None) -> None:
    from benchmarks.peers.engines.settings import build

    model = dataclasses.replace(shaped_models.TINY, tied=False)
    path = str(shaped_models.write(tmp_path / "tiny.gguf", model, "Q4_K_M"))
    options = {"gguf": path, "rows": 256, "threads": 1, "dtype": "auto"}
    engine = build(options | {"settings": sizes.SETTINGS})
    first, fast = (engine._loops[name].llm.runner for name in sizes.SETTINGS)
    name = "layers.0.gate"
    assert first.decoder.matrix(name).data is fast.decoder.matrix(name).data
    logits = []
    for setting, given in sizes.SETTINGS.items():
        alone = LLM(
            path, quantization=given["quantization"], kv_cache_dtype=given["kv"], threads=1,
            max_model_len=256, max_num_seqs=8, packed=False,
        )  # fmt: skip
        own = engine._loops[setting].llm
        assert own.config == alone.config
        pair = [each.runner.prefill(each.runner.open("", 256), PROMPT) for each in (own, alone)]
        assert (pair[0] == pair[1]).all()
        logits.append(pair[0])
    assert (logits[0] != logits[1]).any()
    engine.decode([PROMPT[:24]], 4, "fast")
    continued = engine.decode([PROMPT], 4, "fast")
    again = build(options | {"settings": sizes.SETTINGS}).decode([PROMPT], 4, "fast")
    assert {**continued, "seconds": 0} == {**again, "seconds": 0}


@pytest.mark.parametrize("goes_back", [True, False])
def test_llama_cpp_runs_what_a_kept_prompt_lacks(
    monkeypatch: pytest.MonkeyPatch, goes_back: bool
) -> None:
    look_up = types.SimpleNamespace(LlamaPromptLookupDecoding=None)
    monkeypatch.setitem(sys.modules, "llama_cpp", types.ModuleType("llama_cpp"))
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", look_up)
    monkeypatch.delitem(sys.modules, "benchmarks.peers.engines.llamacpp", raising=False)
    from benchmarks.peers.engines import llamacpp

    monkeypatch.setattr(llamacpp, "BATCH", 10)
    kept, ran = 0, []

    class Counting(llamacpp.LlamaCpp):
        def __init__(self) -> None:
            self._kept, self._states = {}, {}

        def _context(self, sequences: int, cache: str = "f16") -> str:
            return cache

        def _forget(self, context: str, sequences: int, rows: int) -> bool:
            nonlocal kept
            if goes_back or rows == 0:
                kept = rows
            return goes_back or rows == 0

        def _keep_states(self, context: str, sequences: int, cache: str, rows: int) -> None:
            if not goes_back:
                self._states[sequences, cache] = rows, [bytes(kept)]

        def _run(self, context: str, tokens: Any, first: int, every: bool = False) -> None:
            nonlocal kept
            assert first == kept
            kept += len(tokens[0])
            ran.append(len(tokens[0]))

        def _sample(self, context: str, sequences: int) -> list[int]:
            return [7] * sequences

    def put_back(context: str, state: bytes, size: int, sequence: int) -> None:
        nonlocal kept
        kept = size

    monkeypatch.setattr(llamacpp.lib, "llama_state_seq_set_data", put_back, raising=False)
    engine = Counting()
    for prompt, expected in (
        (PROMPT[:1], [1]),
        (PROMPT[:13], [10, 2, 1]),
        (PROMPT[:13], [1]),
        (PROMPT, [10, 10, 7, 1]),
        ([5, *PROMPT[1:]], [10, 10, 10, 9, 1]),
    ):
        ran.clear()
        engine.decode([prompt], 2, "q8_0")
        assert ran == [*expected, 1, 1]
    assert list(engine._kept) == [(1, "q8_0")]
    monkeypatch.delitem(sys.modules, "benchmarks.peers.engines.llamacpp", raising=False)


def test_what_does_not_fit_has_a_reason() -> None:
    named = sizes.cases(False)
    model = shaped_models.MODELS["llama-2-7b"]
    said = sizes.why_not(model, "Q8_0", named["decode-8000"], 1e12)
    assert said == "the model's context holds 4096 tokens"
    assert sizes.why_not(model, "Q8_0", named["decode-3000"], 64 << 30) == ""
    said = sizes.why_not(model, "Q8_0", named["decode-3000"], 16 << 30)
    assert said.startswith("needs 2") and said.endswith("GiB of memory, 16.0 are available")
    assert sizes.rows(named.values()) == 8192 and sizes.rows([named["batch-8"]]) == sizes.BATCH_ROWS


def test_avx2_is_compared_with_a_llama_cpp_of_its_own() -> None:
    package = install.PACKAGES[sizes.package_of("v3")]
    (options,) = dict(package.building).values()
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512=OFF"} <= set(options.split())
    native = install.PACKAGES[sizes.package_of("v4")]
    assert native.folder != package.folder and native.requirements == package.requirements


def cell(ours: float) -> dict[str, Any]:
    speeds = {"f16": 10.0, "q8_0": 5.0, "default": ours, "fast": 2 * ours}
    turn = {name: {"tokens_per_second": speed} for name, speed in speeds.items()}
    return {"rounds": [turn] * 3}


def test_the_headline_has_the_worst_next_to_the_best_and_says_what_is_missing() -> None:
    row = sizes_report.row_of(headline.SIZES[0], headline.SIZES_TYPE)
    stored = [{row: {"decode-0": cell(ours), "batch-8": cell(20.0)}} for ours in (18.0, 12.0, 15.0)]
    del stored[0][row]["batch-8"], stored[1][row]["batch-8"]
    drawn = headline.size_table(headline.size_rows(stored)).splitlines()
    assert drawn[2].startswith("| Llama-3.2-1B (Q4_K_M) | without flags | 1.20x / 1.80x | 2.00x |")
    assert drawn[3].startswith(
        "| Llama-3.2-1B (Q4_K_M) | 8-bit inputs and cache | 2.40x / 3.60x | 4.00x |"
    )
    assert drawn[4].count("not measured") == 2, "cases that no shape has a result of are left out"


def test_a_mean_is_of_all_its_cases() -> None:
    cells = {case: cell(10.0 * 2**at) for at, case in enumerate(sizes_report.MEAN_CASES)}
    assert sizes_report.mean(cells, "default") == pytest.approx(2**1.5)
    assert sizes_report.mean(cells, "fast") == pytest.approx(2**2.5)


def test_pages_show_a_table_for_each_processor() -> None:
    page = (record.ROOT / "benchmarks/peers/README.md").read_text()
    stored = {path.name for path in record.results(sizes.__file__).glob(f"{sizes.NAME}_*.json")}
    assert {name.split("_", 1)[1].rpartition("_")[0] for name in stored} == {"v3", "v4_bf16"}
    for name in stored:
        assert f"<!-- table: benchmarks/peers/results/{name} -->" in page
