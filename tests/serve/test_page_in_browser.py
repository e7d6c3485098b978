"""The page in a real browser: what chat.js, answer.js, live.js and the others do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_faults import idle

from browsing import Opened, axe, browser, faults, held, opening, playwright
from serving import Served, until

CODE = "Here **is** `x`:\n\n```python\nprint('<b>1</b>')\n```\nDone."
NONE = "\N{EN DASH}"  # stands where there is no value
SHARE = "read 38 % of the rows"  # of the scripted engine: 10 keys and 5 values of 20
__all__ = ["axe", "browser", "held", "opening"]  # fixtures


def test_no_request_leaves_the_server(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    opened.ask()
    until(lambda: opened.page.inner_text("#share") != NONE)
    asked = [each.url for each in opened.requests]
    assert len(asked) >= 10
    assert [url for url in asked if not url.startswith(server.url + "/")] == []


def test_an_answer_is_streamed_and_tells_what_it_read(
    serving: Callable[..., Any], opening: Callable[..., Opened], held: tuple[Path, dict[str, Any]]
) -> None:
    hold, options = held
    with serving(options=options) as server:
        opened = opening(server)
        opened.say("to be")
        answer = opened.page.locator(".message.assistant")
        until(lambda: len(answer.inner_text()) > 20)
        assert answer.locator(".cost").count() == 0 and opened.page.locator("#stop").is_visible()
        hold.unlink()
        cost = answer.locator(".cost")
        playwright.expect(cost).to_contain_text(SHARE)
        assert "keys 50 %, values 25 %" in cost.inner_text()
        assert "40 tokens" in cost.inner_text() and "first token after" in cost.inner_text()
        whole = server.chat("to be", **opened.bodies[0] | {"stream": False, "stream_options": None})
        assert whole.status_code == 200
        playwright.expect(opened.page.locator(".message.user")).to_contain_text("to be")


@pytest.mark.parametrize("way", ["button", "key"])
def test_stop_ends_the_work(
    serving: Callable[..., Any],
    opening: Callable[..., Opened],
    held: tuple[Path, dict[str, Any]],
    way: str,
) -> None:
    with serving(options=held[1]) as server:
        opened = opening(server)
        opened.say("to be")
        answer = opened.page.locator(".message.assistant")
        until(lambda: len(answer.inner_text()) > 12)
        if way == "button":
            opened.page.click("#stop")
        else:
            opened.page.press("#text", "Escape")
        playwright.expect(answer.locator(".cost")).to_contain_text("stopped")
        until(lambda: server.run(lambda: idle(server)), 10)
        assert opened.page.locator("#send").is_visible()


def test_fields_reach_the_server(
    serving: Callable[..., Any], opening: Callable[..., Opened]
) -> None:
    with serving(
        limits={"attentions": ["certified:eps=0.1"]}, default_sampling={"top_k": 7}
    ) as server:
        opened = opening(server)
        page = opened.page
        page.click("#settings-button")
        assert page.get_attribute("#top_k", "placeholder") == "7"
        values = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "max_tokens": 6, "seed": 3}
        for name, value in values.items():
            page.fill(f"#{name}", str(value))
        page.fill("#system", "Be brief.")
        page.select_option("#attention", "certified:eps=0.1")
        playwright.expect(opened.ask("first")).to_contain_text("certified:eps=0.1")
        opened.ask("second")
        (first, second) = opened.bodies
        assert first.items() >= values.items() and first["stream"] is True
        assert first["suffice"] == {"attention": "certified:eps=0.1"}
        assert first["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "first"},
        ]
        roles = [each["role"] for each in second["messages"]]
        assert roles == ["system", "user", "assistant", "user"]


def test_an_answer_is_generated_again(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    opened.set(seed=5)
    before = opened.ask().locator(".body").inner_text()
    answer = opened.page.locator(".message.assistant")
    answer.get_by_label("Answer again").click()
    playwright.expect(answer.locator(".version")).to_have_text("2/2")
    playwright.expect(answer.locator(".cost")).to_be_visible()
    assert opened.page.locator(".message").count() == 2
    assert answer.locator(".body").inner_text() == before
    assert opened.bodies[0] == opened.bodies[1]


def test_export(server: Served, opening: Callable[..., Opened], tmp_path: Path) -> None:
    opened = opening(server)
    page = opened.page
    assert page.is_disabled("#export")
    text = opened.ask().locator(".body").inner_text()
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "chat.json")
    assert download.value.suggested_filename.startswith("suffice-")
    found = json.loads((tmp_path / "chat.json").read_text())
    assert found["model"] == "scripted" and found["title"] == "to be"
    assert [each["role"] for each in found["messages"]] == ["user", "assistant"]
    assert found["messages"][1]["content"].split() == text.split()
    assert found["messages"][1]["suffice"]["kv_rows_held"] == 800


def test_an_error_is_one_line_and_the_question_stays(
    server: Served, opening: Callable[..., Opened]
) -> None:
    opened = opening(server, sound=False)  # the browser itself notes the status
    opened.page.click("#settings-button")
    opened.page.fill("#temperature", "-1")
    opened.say("to be")
    error = opened.page.locator(".message .error")
    playwright.expect(error).to_contain_text("temperature=-1")
    assert "\n" not in error.inner_text()
    assert opened.page.input_value("#text") == "to be"
    opened.page.fill("#temperature", "1")
    opened.page.press("#text", "Enter")
    playwright.expect(opened.page.locator(".message .cost")).to_be_visible()
    assert [each["content"] for each in opened.bodies[1]["messages"]] == ["to be"]


COLOURS = """() => {
  const canvas = document.querySelector('#keys');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, 6).data;
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) seen.add(data[at]);
  return seen.size;
}"""


def test_the_live_view(serving: Callable[..., Any], opening: Callable[..., Opened]) -> None:
    with serving(options={"step_seconds": 0.01}) as server:
        opened = opening(server)
        page = opened.page
        playwright.expect(page.locator("#state")).to_have_text("idle")
        opened.page.click("#settings-button")
        opened.page.fill("#max_tokens", "300")
        opened.say("to be")
        playwright.expect(page.locator("#share")).to_have_text("38")  # 300 of 800 bytes
        playwright.expect(page.locator("#state")).to_have_text("running")
        playwright.expect(page.locator("#bound")).to_contain_text("up to 0.40 %")
        playwright.expect(page.locator("#keys")).to_have_attribute(
            "aria-label", "keys read: 61 % of those held; 6 layers, 3 heads"
        )
        page.focus("#keys")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            page.keyboard.press(key)
        playwright.expect(page.locator("#cell")).to_contain_text("layer 1, head 1: keys 50 %")
        assert page.evaluate(COLOURS) >= 1
        counts = page.locator("#counts").inner_text()
        assert "Drafts accepted\n75 %" in counts and "Running\n1" in counts
        assert page.locator(".spark p").first.inner_text() != NONE
        playwright.expect(page.locator("#state")).to_have_text("idle")
        assert page.inner_text("#share") == "38", "what was read last stays"


def test_the_feed_is_read_only_while_somebody_looks(
    server: Served, opening: Callable[..., Opened]
) -> None:
    opened = opening(server)
    watchers = server.front.live
    until(lambda: watchers.watchers == 1)
    opened.page.click("#pause")
    until(lambda: watchers.watchers == 0)
    opened.page.click("#pause")
    until(lambda: watchers.watchers == 1)
    for hidden, count in (("true", 0), ("false", 1)):
        opened.page.evaluate(
            f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});"
            "document.dispatchEvent(new Event('visibilitychange'));"
        )
        until(lambda count=count: watchers.watchers == count)
    assert watchers.watchers == 1, "it is seen again"


def test_a_key_is_asked_for_and_kept_for_the_session(
    serving: Callable[..., Any], browser: Any
) -> None:
    with serving(api_keys=("secret",)) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        for given, why in (("wrong", "asks for a key"), ("secret", "does not know")):
            playwright.expect(page.locator("#key-why")).to_contain_text(why)
            page.fill("#key", given)
            page.press("#key", "Enter")
        playwright.expect(page.locator("#model")).to_have_text("scripted")
        playwright.expect(page.locator("#state")).to_have_text("idle")
        stored = "[Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
        assert page.evaluate(stored) == [["secret"], [], ""]
        page.fill("#text", "to be")
        page.press("#text", "Enter")
        playwright.expect(page.locator(".cost")).to_contain_text(SHARE)
        context.close()


def test_the_page_works_under_a_path(
    serving: Callable[..., Any], opening: Callable[..., Opened]
) -> None:
    with serving(root_path="/models/a") as server:
        opened = opening(server, "/models/a/")
        opened.ask()
        assert all(each.url.startswith(server.url + "/models/a/") for each in opened.requests)


def test_a_narrow_window(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server, viewport={"width": 360, "height": 640})
    opened.page.click("#settings-button")
    opened.ask("x" * 200)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_chosen(server: Served, opening: Callable[..., Opened], scheme: str) -> None:
    page = opening(server, color_scheme=scheme).page
    ground = "getComputedStyle(document.body).backgroundColor"
    own = page.evaluate(ground)
    seen = {own}
    for _ in range(2):
        page.click("#theme")
        seen.add(page.evaluate(ground))
    assert len(seen) == 2
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("window", [(1300, 800), (390, 780)], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ["new", "answered", "running", "key"])
def test_accessibility(
    serving: Callable[..., Any],
    opening: Callable[..., Opened],
    axe: str,
    scheme: str,
    state: str,
    window: tuple[int, int],
) -> None:
    slow = 0.5 if state == "running" else 0.001
    viewport = dict(zip(("width", "height"), window, strict=True))
    with serving(
        options={"says": CODE, "step_seconds": slow}, limits={"attentions": ["certified:eps=0.1"]}
    ) as server:
        opened = opening(server, color_scheme=scheme, viewport=viewport)
        page = opened.page
        if state == "answered":
            page.click("#settings-button")
            opened.ask()
            until(lambda: page.inner_text("#share") != NONE)
        elif state == "running":
            opened.say("to be")
        elif state == "key":
            page.evaluate("document.querySelector('#key-dialog').showModal()")
        found = faults(page, axe)
        page.keyboard.press("Escape")
        assert not found
