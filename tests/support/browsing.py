"""The server's page in a real browser, for tests: fixtures, and what they give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PATIENCE = 60_000  # milliseconds: a machine may be busy
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser; `SUFFICE_CHROMIUM` names its program."""
    named = os.environ.get("SUFFICE_CHROMIUM")
    path = named or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no Chromium: install it, or name it as SUFFICE_CHROMIUM")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """The page of a server, with all that it asked for and complained of."""

    def __init__(self, context: Any, server: Served, path: str = "/") -> None:
        self.server = server
        self.page = context.new_page()
        self.requests: list[Any] = []
        self.complaints: list[str] = []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        self.page.goto(server.url + path)
        playwright.expect(self.page.locator("#model")).to_have_text(server.front.settings.names[0])

    def set(self, **fields: Any) -> None:
        """Fill in fields of the settings."""
        if self.page.locator("#settings").is_hidden():
            self.page.click("#settings-button")
        for name, value in fields.items():
            self.page.fill(f"#{name}", str(value))
        self.page.click("#settings-button")

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")

    def ask(self, text: str = "to be") -> Any:
        """Say something and return the answer's element once it is complete."""
        self.say(text)
        answer = self.page.locator(".message.assistant").last
        playwright.expect(answer.locator(".cost")).to_be_visible()
        return answer

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the chat requests."""
        return [each.post_data_json for each in self.requests if each.method == "POST"]


@pytest.fixture
def opening(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Open the page of a server; in the end, nothing may have gone wrong on it."""
    contexts: list[Any] = []
    pages: list[Opened] = []

    def make(server: Served, path: str = "/", *, sound: bool = True, **options: Any) -> Opened:
        contexts.append(browser.new_context(**options))
        found = Opened(contexts[-1], server, path)
        if sound:
            pages.append(found)
        return found

    yield make
    complaints = [line for each in pages for line in each.complaints]
    for each in contexts:
        each.close()
    assert not complaints


@pytest.fixture
def held(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A file, and the options of an engine whose answers stop after 10 tokens while it exists."""
    hold = tmp_path / "hold"
    hold.touch()
    return hold, {"hold": str(hold), "hold_after": 10}


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which checks a page's accessibility; see CONTRIBUTING.md."""
    root = Path(__file__).parents[2]
    path = Path(os.environ.get("SUFFICE_AXE", root / "node_modules/axe-core/axe.min.js"))
    if not path.is_file():
        pytest.skip("axe-core is not installed: npm install --no-save axe-core@4")
    return path.read_text()


def faults(page: Any, axe: str) -> list[str]:
    """What axe-core has against a page as it is now, a line for each rule."""
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    assert found["passes"]
    return [
        f"{each['impact']} {each['id']}: {[node['html'][:120] for node in each['nodes']]}"
        for each in found["violations"]
    ]
