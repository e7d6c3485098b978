"""Thinking, calls, files and models on the page: message.js, composer.js, models.js."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import speaking
from browsing import Opened, axe, browser, faults, opening, playwright
from serving import ENGINE, Served, served, served_models, until
from suffice.serve.settings import Settings

__all__ = ["axe", "browser", "opening"]  # fixtures

THOUGHT = "<think>\nHm, **why** not.\n</think>\n\nYes. It is so! Is it? Well, it is what it is."
CALL = 'Now.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ош"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SAID = """() => {
  window.heard = [];
  const told = ({ addedNodes }) => [...addedNodes].map(({ data }) => data);
  new MutationObserver((records) => heard.push(...records.flatMap(told)))
    .observe(document.querySelector('#said'), { childList: true });
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that thinks and calls; its marks are text, as the scripted engine says it."""
    return speaking.make(tmp_path_factory.mktemp("speaking"), "qwen3", tokens=False)


@pytest.fixture
def says(folder: Path, engine_path: None) -> Callable[..., Any]:
    def make(text: str, **options: Any) -> Any:
        return served(folder, options={"says": text, "context": 4096, **options})

    return make


def test_thinking_is_shown_and_folded(
    says: Callable[..., Any], opening: Callable[..., Opened], tmp_path: Path, axe: str
) -> None:
    hold = tmp_path / "hold"
    hold.write_text("3")
    with says(THOUGHT, hold=str(hold)) as server:
        opened = opening(server)
        page = opened.page
        page.evaluate(SAID)
        opened.set(max_tokens=9)
        opened.say("to be")
        thinking = page.locator(".message .thinking")
        playwright.expect(thinking.locator("summary")).to_have_text("Thinking")
        playwright.expect(thinking.locator("strong")).to_have_text("why")
        assert thinking.get_attribute("open") is not None
        assert faults(page, axe) == []
        hold.unlink()
        playwright.expect(page.locator(".message .cost")).to_be_visible()
        playwright.expect(thinking.locator("summary")).to_contain_text("Thought for")
        assert thinking.get_attribute("open") is None
        assert page.inner_text(".message.assistant .body").startswith("Yes. It is so!")
        heard = page.evaluate("heard")
        assert heard[0] == "The model is thinking." and len(heard) <= 5
        assert "".join(heard[1:]) == page.inner_text(".message.assistant .body")
        opened.ask("on")
        answer = opened.bodies[1]["messages"][1]
        assert answer["reasoning_content"] == "Hm, **why** not."
        page.reload()
        playwright.expect(thinking.first.locator("summary")).to_contain_text("Thought for")


def test_thinking_that_is_closed_stays_closed(
    says: Callable[..., Any], opening: Callable[..., Opened], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.write_text("2")
    with says(THOUGHT, hold=str(hold)) as server:
        opened = opening(server)
        opened.set(max_tokens=9)
        opened.say("to be")
        thinking = opened.page.locator(".message .thinking")
        playwright.expect(thinking).to_contain_text("Hm,")
        thinking.locator("summary").click()
        hold.write_text("3")
        playwright.expect(thinking.locator("strong")).to_have_text("why")
        assert thinking.get_attribute("open") is None
        hold.unlink()
        playwright.expect(opened.page.locator(".message .cost")).to_be_visible()


def test_calls_are_shown_as_they_grow(
    says: Callable[..., Any], opening: Callable[..., Opened], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.write_text("6")
    with says(CALL, hold=str(hold)) as server:
        opened = opening(server)
        page = opened.page
        opened.set(max_tokens=8, tools=json.dumps(TOOLS))
        opened.say("to be")
        call = page.locator(".message .call")
        playwright.expect(call.locator("summary")).to_have_text("Call of weather")
        playwright.expect(call.locator("pre")).to_contain_text('{"city"')
        hold.unlink()
        playwright.expect(page.locator(".message .cost")).to_be_visible()
        assert call.locator("pre").inner_text() == '{\n  "city": "Ош"\n}'
        assert opened.bodies[0]["tools"] == TOOLS
        opened.ask("on")
        (said,) = opened.bodies[1]["messages"][1]["tool_calls"]
        assert said["function"] == {"name": "weather", "arguments": '{"city": "Ош"}'}


@pytest.mark.parametrize("given", ["{", '{"name": "a"}'])
def test_tools_that_are_no_list_are_not_sent(
    server: Served, opening: Callable[..., Opened], given: str
) -> None:
    opened = opening(server)
    opened.set(tools=given)
    opened.say("to be")
    assert opened.page.locator("#settings").is_visible() and opened.bodies == []
    assert opened.page.evaluate("document.activeElement.id") == "tools"
    opened.page.fill("#tools", "[]")
    opened.page.press("#text", "Enter")
    playwright.expect(opened.page.locator(".cost")).to_be_visible()
    assert "tools" not in opened.bodies[0]


def test_thinking_can_be_turned_off(
    says: Callable[..., Any], opening: Callable[..., Opened]
) -> None:
    with says("Yes.") as server:
        opened = opening(server)
        opened.page.click("#settings-button")
        opened.page.select_option("#reasoning_effort", "none")
        opened.ask()
        assert opened.bodies[0]["reasoning_effort"] == "none"


def named(name: str, text: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "text/plain", "buffer": text}


DROP = """([name, text]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  for (const kind of ['dragover', 'drop']) {
    document.querySelector('#scroller').dispatchEvent(
      new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }),
    );
  }
}"""


def test_text_files_go_into_a_message(
    server: Served, opening: Callable[..., Opened], axe: str
) -> None:
    opened = opening(server)
    page = opened.page
    files = [named("a.md", "é\n```\nx\n```\n".encode()), named("b.txt", b"two"), named("c", b"3")]
    page.set_input_files("#file", files)
    playwright.expect(page.locator("#files li")).to_have_count(3)
    page.get_by_label("Remove b.txt").click()
    page.evaluate(DROP, ["d.py", "print(1)\n"])
    playwright.expect(page.locator("#files li")).to_have_text(["a.md", "c", "d.py"])
    assert faults(page, axe) == []
    opened.ask("Sum up.")
    assert page.locator("#files").is_hidden()
    content = opened.bodies[0]["messages"][0]["content"]
    assert content.split("\n\n") == [
        "a.md:\n````\né\n```\nx\n```\n````",
        "c:\n```\n3\n```",
        "d.py:\n```\nprint(1)\n```",
        "Sum up.",
    ]
    shown = page.locator(".message.user .file summary").all_inner_texts()
    assert [each.split()[0] for each in shown] == ["a.md,", "c,", "d.py,"]
    assert page.inner_text(".message.user .body") == "Sum up."
    page.locator(".message.user .file summary").last.click()
    assert page.locator(".message.user .file pre").last.inner_text() == "print(1)\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b", b"x" * 1_000_001])
def test_files_that_are_no_text_are_refused(
    server: Served, opening: Callable[..., Opened], content: bytes
) -> None:
    opened = opening(server)
    opened.page.set_input_files("#file", [named("bad.bin", content), named("good", b"x")])
    complaint = opened.page.locator("#complaint")
    playwright.expect(complaint).to_have_text("bad.bin: not a text file of at most 1.0 MB.")
    assert opened.page.locator("#files li").all_inner_texts() == ["good"]
    opened.page.press("#text", "Enter")
    playwright.expect(opened.page.locator(".message .cost")).to_be_visible()
    assert complaint.inner_text() == ""
    assert opened.page.inner_text("#chat-title") == "good", "a conversation is named by its file"


def test_one_of_several_models_is_chosen(
    serving: Callable[..., Any], opening: Callable[..., Opened], axe: str
) -> None:
    with serving(served_names=("a", "b")) as server:
        opened = opening(server)
        page = opened.page
        playwright.expect(page.locator("#models option")).to_have_text(["a", "b"])
        assert page.locator("#model").is_hidden() and faults(page, axe) == []
        page.select_option("#models", "b")
        playwright.expect(opened.ask().locator(".cost")).to_contain_text("b \N{MIDDLE DOT} 40")
        page.keyboard.press("Control+k")
        page.select_option("#models", "a")
        opened.ask("on")
        assert [each["model"] for each in opened.bodies] == ["b", "a"]
        page.locator("#conversations .open").get_by_text("to be").click()
        assert page.input_value("#models") == "b"


def test_a_model_that_is_not_loaded(
    words: Path, engine_path: None, opening: Callable[..., Opened], tmp_path: Path
) -> None:
    late = tmp_path / "late"
    late.touch()
    options = {"model": str(words), "late": str(late)}
    shared: dict[str, Any] = {"engine": ENGINE, "port": 0, "options": options}
    limits = {"attentions": ["certified:eps=0.1"]}
    with served_models(
        [Settings(model="aa", **shared), Settings(model="bb", limits=limits, **shared)]
    ) as server:
        opened = opening(server)
        page = opened.page
        states = page.locator("#models option")
        playwright.expect(states).to_have_text(["aa (not loaded)", "bb (not loaded)"])
        with page.expect_request("**/live?model=bb"):
            page.select_option("#models", "bb")
        assert page.inner_text("#facts") == "not loaded"
        opened.say("to be")
        playwright.expect(page.locator(".reading")).to_have_text("waiting for bb to be loaded")
        late.unlink()
        playwright.expect(page.locator(".message .cost")).to_be_visible()
        playwright.expect(states).to_have_text(["aa (not loaded)", "bb"])
        playwright.expect(page.locator("#facts")).to_contain_text("exact attention, 512 tokens")
        playwright.expect(page.locator("#attention option")).to_have_count(2)
        until(lambda: page.inner_text("#state") == "idle")


def test_a_model_that_cannot_be_loaded(
    words: Path, engine_path: None, opening: Callable[..., Opened]
) -> None:
    options = {"model": str(words)}
    shared: dict[str, Any] = {"engine": ENGINE, "port": 0}
    given = [options, options | {"fail": "this"}]
    with served_models(
        [
            Settings(model=name, options=each, **shared)
            for name, each in zip(("aa", "bb"), given, strict=True)
        ]
    ) as server:
        opened = opening(server, sound=False)  # the browser itself notes the status
        page = opened.page
        page.select_option("#models", "bb")
        opened.say("to be")
        playwright.expect(page.locator(".message .error")).to_contain_text("cannot be used")
        playwright.expect(page.locator("#models option").last).to_have_text("bb (failed)")


def test_a_question_without_an_answer_is_not_lost(
    serving: Callable[..., Any], opening: Callable[..., Opened], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with serving(options={"hold": str(hold)}) as server:
        opened = opening(server)
        page = opened.page
        page.set_input_files("#file", [named("a", b"x")])
        opened.say("to be")
        page.fill("#text", "meanwhile")
        page.click("#stop")
        playwright.expect(page.locator("#send")).to_be_visible()
        assert page.input_value("#text") == "meanwhile"
        assert page.locator(".message .body").all_inner_texts() == ["to be"]
        hold.unlink()
        page.get_by_label("Answer", exact=True).click()
        playwright.expect(page.locator(".message .cost")).to_be_visible()
        assert opened.bodies[0] == opened.bodies[1]
