"""The house checks: each is shown to catch what it is for."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from suffice.trace import Trace

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))  # tools import each other


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


readme, sizes, untested = tool("readme"), tool("sizes"), tool("untested")
papers, techniques, words = tool("papers"), tool("techniques"), tool("words")
cells, findings, kernels = tool("cells"), tool("findings"), tool("kernels")
bits_models = tool("bits_models")


def test_the_readme_agrees_with_the_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert readme.filled(text) == text, "run python tools/readme.py"
    assert "<!-- table: " in text


def test_a_table_is_drawn_from_its_result(tmp_path: Path) -> None:
    result = {"machine": {"cpu": "Fast", "cores": 2}, "date": "today", "command": "make it"}
    (tmp_path / "some.json").write_text(json.dumps(result))
    (tmp_path / "some.md").write_text("| a |\n| --- |\n| 1 |\n")
    marked = "x\n<!-- table: some.json -->\nold\n<!-- end -->\ny\n"
    drawn = "x\n<!-- table: some.json -->\n| a |\n| --- |\n| 1 |\n\n"
    drawn += "Fast, 2 cores, today: `make it`\n<!-- end -->\ny\n"
    assert readme.filled(marked, tmp_path) == drawn
    assert readme.filled(drawn, tmp_path) == drawn
    assert "Not measured yet." in readme.filled(marked.replace("some", "other"), tmp_path)


def test_long_files_and_functions_and_empty_names_are_complained_of() -> None:
    long = "def f():\n" + "    pass\n" * 60
    [complaint] = sizes.complaints(Path("src/a.py"), long, sizes.python_functions(long))
    assert complaint == "src/a.py:1: f: 61 lines, at most 60"
    fits = "def f():\n" + "    pass\n" * 59
    assert sizes.complaints(Path("src/a.py"), fits, sizes.python_functions(fits)) == []
    assert sizes.complaints(Path("src/a.py"), "\n" * 401, []) == [
        "src/a.py: 401 lines, at most 400"
    ]
    assert sizes.complaints(Path("examples/a.py"), "\n" * 41, []) == [
        "examples/a.py: 41 lines, at most 40"
    ]
    [complaint] = sizes.complaints(Path("src/suffice/utils.py"), "", [])
    assert complaint == "src/suffice/utils.py: the name 'utils' says nothing"
    [complaint] = sizes.complaints(Path("src/core/a.py"), "", [])
    assert complaint == "src/core/a.py: the name 'core' says nothing"


def test_functions_of_cpp_are_measured() -> None:
    text = (
        "namespace a {\n\nint one() { return 1; }\n\ntemplate <class T>\nvoid two(T x,\n"
        "         T y) {\n  x = y;\n\n  y = x;\n}\n\n"
        "struct S {  // of members\n  int f();\n  S(int x)\n      : x(x) {\n    if (x) {\n"
        "      x++;\n    }\n  }\n\n private:\n  struct T {\n    int g() const {\n"
        "      return 1;\n    }\n  };\n  int x = 0;\n};\n\nint table[] = {\n    1,\n};\n\n"
        "}  // namespace a\n"
    )
    assert sizes.native_functions(text) == [
        sizes.Function("int one", 3, 1),
        sizes.Function("void two", 5, 7),
        sizes.Function("S", 15, 6),
        sizes.Function("int g", 24, 3),
    ]


def preflight(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run tools/preflight.sh with only the programs in `folder`."""
    ran = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "preflight.sh"), *arguments],
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stderr


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("python", "compiler", "message"),
    [
        (None, None, "'python3' is not installed; Python 3.10 or newer is needed"),
        ('[ "$1" = --version ] && echo Python 3.8.1; exit 1', None, "Python 3.8.1 is too old"),
        ('case "$2" in *ensurepip*) exit 1;; esac', None, "'python3' cannot make virtual env"),
        ("exit 0", None, "no C++ compiler 'c++'; install one (Debian: g++)"),
        ("exit 0", "exit 1", "the C++ compiler 'c++' does not know C++20"),
        ("exit 0", "exit 0", None),
    ],
)
def test_what_a_machine_lacks_is_one_line(
    tmp_path: Path, python: str | None, compiler: str | None, message: str | None
) -> None:
    if python:
        program(tmp_path, "python3", python)
    if compiler:
        program(tmp_path, "c++", compiler)
    code, errors = preflight(tmp_path)
    if message is None:
        assert (code, errors) == (0, "")
    else:
        assert code == 2
        assert errors.startswith(f"suffice: error: {message}")
        assert len(errors.splitlines()) == 1


def test_ci_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert {"make test", "make check"} <= set(script.read_text().splitlines())


def test_a_module_that_no_test_knows_is_found(tmp_path: Path) -> None:
    source, tests = tmp_path / "src" / "made", tmp_path / "tests"
    for folder in (source, tests):
        folder.mkdir(parents=True)
    for name in ("__init__", "imported", "named_file", "mentioned", "forgotten"):
        (source / f"{name}.py").touch()
    (tests / "test_named_file.py").write_text('"""Also tests mentioned.py."""\n')
    (tests / "test_a.py").write_text("from made import imported\n")
    assert untested.untested(source.parent, tests) == ["made.forgotten"]


def test_a_bit_that_differs_is_found(tmp_path: Path) -> None:
    one, other = ({"a case": {"decoded": {"steps": n, "perplexity": "1.5"}}} for n in (3, 4))
    paths = []
    for name, record in (("one", one), ("same", one), ("other", other), ("less", {})):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(record))

    def compared(after: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / "tools" / "same_bits.py", "compare", paths[0], after]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    same, differs, less = map(compared, paths[1:])
    assert (same.returncode, same.stdout) == (0, "0 of 1 cases differ\n")
    assert differs.returncode == 1 and less.returncode == 1
    assert "3 -> 4\ndecoded.steps: 1 cases\n1 of 1 cases differ\n" in differs.stdout
    assert less.stdout == "1 cases are in one.json only\n1 of 1 cases differ\n"
    one["a case"]["decoded"]["perplexity"] = "1.2"
    paths[0].write_text(json.dumps(one))
    assert "decoded.perplexity: 1 cases, by 2.5e-01 at most\n" in compared(paths[1]).stdout


def test_the_bits_of_a_case_have_the_counts_of_its_trace() -> None:
    trace = Trace(layers=2, kv_heads=3)
    trace.rows[0] = 4
    found = tool("same_bits").counts(trace)
    assert found["rows"] == [24, 0, 0, 0, 0] and found["steps"] == 0


TINY = """
def make(folder, variant, **changes):
    if variant == "gemma3":
        raise SystemExit("no gemma3")
    (folder / "config.json").write_text(f"{variant} {changes}")
"""


def test_models_to_compare_are_made_once_by_another_process(tmp_path: Path) -> None:
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "tiny.py").write_text(TINY)
    models = bits_models.Models(tmp_path, tmp_path, sys.executable, "a text")
    config = models.need(tmp_path / "qwen2") / "config.json"
    assert config.read_text() == "qwen2 {'tokenizer': True, 'max_position_embeddings': 1024}"
    config.write_text("kept")
    assert (models.need(tmp_path / "qwen2") / "config.json").read_text() == "kept"
    with pytest.raises(RuntimeError, match=r"^exit code 1: no gemma3$"):
        models.need(models.calibration("gemma3"))
    for path in (tmp_path / "gemma3", models.calibration("gemma3")):
        with pytest.raises(bits_models.NotMadeError, match=f"^{path.name}$"):
            models.need(path)


def test_the_quick_tests_are_there() -> None:
    for line in (ROOT / "tests" / "smoke.txt").read_text().splitlines():
        path, _, name = line.partition("::")
        source = (ROOT / path).read_text()
        assert not name or f"\ndef {name}(" in source, line


def test_phrases_that_readers_stumble_over() -> None:
    text = "Reads so\u0020many rows.\nA sketch lies BE\u0053IDE the keys; insidebeside is a name.\n"
    found = words.complaints("a.py", text)
    assert [line.split(" ")[0] for line in found] == ["a.py:1:", "a.py:2:"]
    assert words.complaints("a.py", "Reads 16 rows, next to the keys.\n") == []
    assert "README.md" in words.files()


def test_one_spelling_of_quantize() -> None:
    text = "int8\n    # Dequanti\u0073es a row\nquanti\u0073e = quantize\n"
    assert words.complaints("a.h", text) == [
        "a.h:2: 'Dequanti\u0073es': Dequantizes",
        "a.h:3: 'quanti\u0073e': quantize",
    ]
    assert words.complaints("a.h", "Quantizes rows; quantization.\n") == []


def test_an_item_of_a_paper_names_what_exists(tmp_path: Path) -> None:
    (tmp_path / "here.py").touch()
    good = papers.Item("Growth", "V", "implemented", "here.py", "", "", "", "not measured")
    assert papers.complaints([good], tmp_path) == []
    bad = [good._replace(code="gone.py"), good._replace(status="done")]
    bad += [good._replace(status="measured", value="2x"), good._replace(difference="")]
    assert papers.complaints(bad, tmp_path) == [
        "Growth: unknown status 'done'",
        "Growth: gone.py does not exist",
        "Growth: measured, but no result is named",
        "Growth: implemented, but has no reason",
    ]


def test_the_value_of_an_item_is_from_a_stored_table(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    table = "| B | growth | over |\n| ---: | --- | ---: |\n| 1 | `bmc` | 2.5 |\n| 8 | `bmc` | 3 |\n"
    (tmp_path / "a.md").write_text("| x | y |\n| --- | --- |\n| bmc | 9 |\n\n" + table)
    item = papers.Item("Growth", "V", "measured", "", "", "a.json", "", "")
    assert papers.complaints([item], tmp_path) == ["Growth: measured, but has no value"]
    item = item._replace(value="{8; bmc | over}x, alone {1; bmc | over}x; paper: 4x")
    reason = "Growth: differs from the paper's figure, but has no reason"
    assert papers.complaints([item], tmp_path) == [reason]
    assert papers.complaints([item._replace(value="{8; bmc | over}x; paper: none")], tmp_path) == []
    item = item._replace(difference="a batch of {8; bmc | B}")
    assert papers.complaints([item], tmp_path) == []
    assert papers.filled(item.value, item, tmp_path) == "3x, alone 2.5x; paper: 4x"
    assert papers.filled(item.difference, item, tmp_path) == "a batch of 8"
    for missing in ("{8; bmc | under}", "{9; bmc | over}"):
        [complaint] = papers.complaints([item._replace(value=missing)], tmp_path)
        assert complaint == f"Growth: no stored table has {missing}"
    [complaint] = papers.complaints([item._replace(value="{bmc | over}")], tmp_path)
    assert complaint == "Growth: several rows of stored tables have {bmc | over}"


def test_findings_have_cells_of_stored_tables(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "| what | asked | got |\n| --- | --- | --- |\n| x (1; 2) | 3 | **4** |\n"
    )
    source = tmp_path / "findings.toml"
    source.write_text(
        'findings = [["serve.x", "{x (1; 2); 3 | got} times", "[page](page.md)", "a b"]]'
    )
    assert findings.table(source).splitlines()[2:] == ["| `serve.x` | 4 times | [page](page.md) |"]
    source.write_text('findings = [["serve.x", "{y | got}", "[page](page.md)", "a"]]')
    with pytest.raises(KeyError, match=re.escape("{y | got}")):
        findings.table(source)


def test_a_cell_is_of_one_row(tmp_path: Path) -> None:
    """A reference that fits rows with several values is refused; columns and lines above tell."""
    page = tmp_path / "a.md"
    page.write_text(
        "## Cold\n\n| T | s | times |\n| --- | --- | --- |\n| 1 | 16 | 2 |\n| 16 | 9 | 3 |\n"
        "\nWarm:\n\n| T | ms | times |\n| --- | --- | --- |\n| 16 | 16 | 4 |\n"
    )
    with pytest.raises(
        KeyError, match=re.escape("several rows of stored tables have {16 | times}")
    ):
        cells.filled("{16 | times}", [page])
    found = (
        "{16; 9 | times} {16; ms | times} {16; Warm: | times} {16; 16 | times} {1; Cold | times}"
    )
    assert cells.filled(found, [page]) == "3 4 4 4 2"


def test_findings_are_of_benchmarks_that_exist() -> None:
    named = {row[0] for row in findings.cells.described(findings.SOURCE)["findings"]}
    assert len(named) > 40
    for name in named:
        assert (ROOT / "benchmarks" / f"{name.replace('.', '/')}.py").exists(), name


def test_the_page_of_the_papers_is_up_to_date() -> None:
    source = ROOT / papers.SOURCE
    assert papers.page(source) == (ROOT / papers.PAGE).read_text(), "run python tools/papers.py"
    items = [item for _, found in papers.papers(source) for item in found]
    assert papers.complaints(items, ROOT) == []
    assert [papers.uncovered(paper, own) for paper, own in papers.papers(source)] == [[]] * 5


def test_every_figure_and_table_of_a_paper_has_an_item() -> None:
    found = papers.numbered("V-A, Fig. 2, 3, Alg. 1 l. 5, 10, Table IV, X, 3.2, Table 6, VI-A")
    assert found == {("Fig.", 2), ("Fig.", 3), ("Table", 4), ("Table", 10), ("Table", 6)}
    items = [papers.Item("a", place, *[""] * 6) for place in ("Fig. 1, 3", "V, Table I")]
    paper = {"name": "P", "figures": 3, "tables": 2}
    assert papers.uncovered(paper, items) == [
        "P: no item names Fig. 2",
        "P: no item names Table 2",
    ]


def test_a_figure_is_the_cell_of_a_stored_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.md").write_text("| a | b |\n| --- | ---: |\n| `x` | 1 |\n")
    (tmp_path / "two.md").write_text("| a | c |\n| --- | --- |\n| `x` | 2 |\n")
    monkeypatch.setattr(techniques, "ROOT", tmp_path)
    entry = {"result": "one.md two.md", "says": "{x | b} of {x | c}"}
    assert techniques.measured(entry) == "1 of 2"
    assert techniques.measured({}) == "not measured"
    with pytest.raises(KeyError, match="no stored table has"):
        techniques.measured(entry | {"result": "one.md"})


def test_every_entry_of_the_techniques_is_a_technique() -> None:
    from suffice.cli.techniques import SEAMS

    known = {(seam.name, name) for seam in SEAMS for name in seam.table.names()}
    assert {(entry["seam"], entry["name"]) for entry in techniques.entries()} <= known
    marked = {
        tuple(names.split(": ")[1].split())
        for page in sorted((ROOT / "docs/techniques").glob("*.md"))
        for _, names, _ in techniques.MARKED.findall(page.read_text())
    }
    assert marked == known, "a technique has no part on its seam's page"


def test_instances_of_a_template_are_counted_under_its_name(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source = tmp_path / "part.cpp"
    source.write_text(
        "namespace a { template <class T, int N> __attribute__((noinline)) T add(T x) {"
        " return x + N; } struct S { int f(int) const; }; }\n"
        "int a::S::f(int x) const { return add<int, 1>(x) + add<int, 2>(x) + add<long, 1>(x); }\n"
    )
    command = [compiler, "-O1", "-c", str(source), "-o", "unused.o"]
    part = kernels.measure(kernels.Part("base", "part"), command, tmp_path)
    assert {name: len(sizes) for name, sizes in part.functions.items()} == {"add": 3, "f": 1}
    assert part.instances() == 4 and part.bytes() > 0 and part.memory > 0
    assert not (tmp_path / "unused.o").exists(), "the build keeps its own objects"
