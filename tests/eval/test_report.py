"""The page of a report: what it says, that it loads nothing, and how a browser takes it.

Also tests report_plots.py and report_tables.py.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import Markup, escape

pytest.importorskip("matplotlib", reason="the plots need suffice[plot]")

from commands import Cli, complaint
from report_records import LAYERS, PEERS, RESULTS, benched, folder_of_all, perplexity, write
from suffice.errors import InputError
from suffice.eval import report_plots
from suffice.eval.report import page
from suffice.eval.report_points import shares, trade_offs
from suffice.eval.report_read import read


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return folder_of_all(tmp_path / "results")


class Page(HTMLParser):
    """What a page has: tags, ids, links, the numbers of its tables, the cells of each row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.numbers: list[float] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" else []
        self.numbers += [float(given["value"] or "")] if tag == "data" else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def numbers(value: Any) -> list[float]:
    """Return the numbers of a record, but for those in lists, which pages show as one text."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots out, which take most of a page's time."""
    for name in ("trade_off", "rows_read", "speeds"):
        monkeypatch.setattr(report_plots, name, lambda *arguments: Markup("<svg></svg>"))


def results_of(path: Path) -> list[Any]:
    """Return the results in a file: one, or those that it keeps by name."""
    data = json.loads(path.read_text())
    return list(data["records"].values()) if "records" in data else [data]


def published(folder: Path) -> list[Path]:
    """Return published results, one of each form, and two settings of a file that plots them."""
    plotted = set((RESULTS / "attention" / "results").glob("quality*.json"))
    (one,) = (path for path in plotted if "gemma3" in path.name)
    kept = json.loads(one.read_text())
    kept["records"] = dict(list(kept["records"].items())[:2])
    two = write(folder / one.name, kept)
    found: dict[Any, Path] = {}
    for path in sorted(set(RESULTS.rglob("*.json")) - plotted):
        data = json.loads(path.read_text())
        found.setdefault((path.parent, tuple(sorted(data)) if isinstance(data, dict) else ()), path)
    return [two, *found.values()]


def test_a_page_loads_nothing_and_says_everything(cli: Cli, records: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    for name in ("a", "b", "c"):  # published results have a perplexity
        (records / f"{name}.json").unlink()
    paths = [*records.rglob("*.json"), *published(tmp_path / "published")]
    ran = cli("report", *map(str, paths), "-o", str(output))
    assert (ran.code, ran.out, ran.err) == (0, f"{output}\n", "")
    assert not list(tmp_path.glob("*.part")) and output.stat().st_mode & 0o444 == 0o444
    text = output.read_text(encoding="utf-8")
    for outside in re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)|url\(([^)]*)""", text):
        assert "".join(outside).startswith(("#", "data:image/png;base64,")), outside
    assert "@import" not in text and "<script" not in text and "<link" not in text
    found = Page(text)
    assert len(set(found.ids)) == len(found.ids)
    assert {link[1:] for link in found.links} <= set(found.ids)
    kept = [(path, each) for path in paths for each in results_of(path)]
    assert sum(tag == "article" for tag in found.tags) == len(kept) > len(paths) > 10
    # Four measures by share and by bytes, the results with reads, one bench, one of peers.
    reading = sum("reads" in record for _, record in kept)
    assert found.tags.count("svg") == 4 * 2 + reading + 1 + 1
    for path, record in kept:
        if isinstance(record, dict):
            assert escape(record["command"]) in text
            shown = {k: v for k, v in record.items() if k not in ("schema", "machine")}
            record = {k: v for k, v in shown.items() if k != "versions"}
        missing = set(numbers(record)) - set(found.numbers)
        assert not missing, (path, missing)


@pytest.mark.usefixtures("undrawn")
def test_tables_have_the_numbers_of_the_plots(records: Path) -> None:
    entries = read([records])
    found = Page(page(entries))
    for trade in trade_offs(entries):
        for index, point in enumerate(trade.points):
            (row,) = [
                row
                for row in found.rows
                if row[:3] == [f"#{point.entry.number}", point.label, f"{point.quality:.6g}"]
            ]
            assert row[4] == f"{100 * point.share:.4g} %"
            assert (row[5] == "on the front") == (index in trade.front("share"))
    read_of_first = shares(entries[0].data["reads"])
    for layer in range(LAYERS):
        cells = [f"{100 * share:.4g} %" for share in read_of_first[:, layer].T.ravel()]
        assert [str(layer + 1), *cells] in found.rows


def test_text_of_records_is_text(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>\"'&$x_1$ൔ"
    record = perplexity(1.25, attention=bad)
    record |= {"command": bad, "commit": bad, "machine": {bad: bad}, "versions": {bad: bad}}
    record["result"][bad] = [{bad: bad}]
    record["config"]["model"] = record["asked"]["text"] = bad
    worse = [benched(0, 1.5, weights=bad, model=bad, cpu=bad, test=bad)]
    paths = [write(tmp_path / "bad.json", record), write(tmp_path / "worse.json", worse)]
    text = page(read(paths))
    assert "<script" not in text and text.count("&lt;script&gt;") > 10
    assert "script" not in Page(text).tags


def test_what_to_beware_of_is_said(tmp_path: Path) -> None:
    record = perplexity(1.25)
    record |= {"modified": True, "interrupted": True, "commit": None}
    record["versions"]["suffice"] = "0.0.1"
    first = write(tmp_path / "a.json", record)
    text = page(read([first, first, write(tmp_path / "b.json", [benched(0, 1.5)])]))
    for badge in ("interrupted", "modified tree", "stale: made by suffice 0.0.1, this is"):
        assert f'<span class="badge">{badge}' in text
    assert text.count("not recorded") == 6, "a commit, and all that a bench record does not say"
    assert text.count("<article") == 2, "each file once"
    assert "No result has both a figure of quality and bytes read." in text


LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3)
JSON = st.recursive(
    LEAVES, lambda some: st.lists(some, max_size=2) | st.dictionaries(st.text(max_size=2), some)
)


SAME_FOLDER = [HealthCheck.function_scoped_fixture]


@settings(deadline=None, max_examples=12, suppress_health_check=SAME_FOLDER)
@given(st.data())
def test_a_damaged_record_is_refused_or_shown(tmp_path: Path, data: st.DataObject) -> None:
    record: Any = data.draw(st.sampled_from([perplexity(1.25), [benched(0, 1.5), benched(8, 1.0)]]))
    at = record = copy.deepcopy(record)
    while True:
        key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
        if not at[key] or not isinstance(at[key], dict | list) or data.draw(st.booleans()):
            at[key] = data.draw(JSON)
            break
        at = at[key]
    path = write(tmp_path / "x.json", record)
    try:
        entries = read([path])
    except InputError:
        return
    assert "</html>" in page(entries)


@pytest.mark.usefixtures("undrawn")
def test_bad_input(cli: Cli, records: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (empty := tmp_path / "empty").mkdir()
    one, output = str(records / "a.json"), str(tmp_path / "page.html")
    bad = str(write(tmp_path / "bad.json", "{"))
    Path(output).write_text("before")
    (binary := tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for arguments, message in (
        ((str(empty), "-o", output), f"{empty} has no .json file"),
        ((one, bad, "-o", output), f"{bad} is not JSON, or not all of it"),
        ((str(binary), "-o", output), f"{binary} is not JSON: it is not valid text"),
        ((f"{one}x", "-o", output), f"{one}x: cannot be read: No such file"),
        ((one, "-o", str(tmp_path)), f"-o {tmp_path} is a folder: give a file, such as"),
        ((one, "-o", str(tmp_path / "no" / "x")), f"there is no folder {tmp_path / 'no'}"),
        ((one, "-o", one), "a report is HTML and no result"),
        ((one, "-o", "/proc/page.html"), "/proc/page.html: cannot be written: "),
        ((one, "-o", str(tmp_path / ("x" * 300))), ": File name too long"),
        (("x" * 300, "-o", output), ": File name too long"),
        (("-o", output), "Missing argument 'RESULTS'"),
    ):
        assert message in complaint(cli("report", *arguments))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = complaint(cli("report", one, "-o", output))
    assert message.endswith("matplotlib, which is not installed: install suffice[plot]")
    assert Path(output).read_text() == "before", "a page that is there stays as it was"
    assert not list(tmp_path.rglob("*.part")) and not list(Path().glob("report.html*"))


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browse(
    browser: str, url: str, profile: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
    return subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--no-first-run", "--enable-logging=stderr",
            *(f"--disable-{what}" for what in quiet), f"--user-data-dir={profile}", *arguments, url,
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_shows_it(records: Path, tmp_path: Path, width: int) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    path = write(tmp_path / "page.html", page(read([records, PEERS])))
    url, picture = path.as_uri(), tmp_path / "page.png"
    shown = browse(browser, url, tmp_path / "a", "--dump-dom")
    found = Page(shown.stdout)
    assert found.tags.count("svg") == 4 * 2 + 6 + 1 + 1 and found.tags.count("article") == 8
    assert "CONSOLE" not in shown.stderr
    ran = browse(
        browser, url, tmp_path / "b", f"--screenshot={picture}", f"--window-size={width},1400"
    )
    assert "CONSOLE" not in ran.stderr
    import matplotlib.image

    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (1400, width)
    assert len(np.unique((255 * pixels[..., :3]).astype(int).reshape(-1, 3), axis=0)) > 50
