"""Conversations on the page: kept, listed, branched, in several tabs: chat.js, kept.js, list.js."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from browsing import Opened, axe, browser, faults, held, opening, playwright
from serving import Served, until

__all__ = ["axe", "browser", "held", "opening"]  # fixtures

NAMES = "#conversations .open"
BLOCKED = """
  const refuse = () => { throw new DOMException('blocked', 'SecurityError'); };
  IDBFactory.prototype.open = refuse;
  for (const name of ['localStorage', 'sessionStorage']) {
    Object.defineProperty(window, name, { get: refuse });
  }
"""


def names(page: Any) -> list[str]:
    found: list[str] = page.locator(NAMES).all_inner_texts()
    return found


def again(opened: Opened) -> None:
    """Load the page again."""
    opened.page.reload()
    playwright.expect(opened.page.locator("#model")).to_have_text("scripted")


def test_conversations_are_kept(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    page = opened.page
    texts = [opened.ask(text).inner_text() for text in ("first", "second")]
    page.keyboard.press("Control+k")
    assert page.locator(".message").count() == 0 and page.locator("#welcome").is_visible()
    assert page.evaluate("document.activeElement.id") == "text"
    opened.ask("another")
    assert names(page) == ["another", "first"]
    again(opened)
    playwright.expect(page.locator(".message.user .body")).to_have_text(["another"])
    page.locator(NAMES).nth(1).click()
    assert page.locator(".message.user .body").all_inner_texts() == ["first", "second"]
    assert page.locator(".message.assistant").all_inner_texts() == texts
    assert page.inner_text("#chat-title") == "first"
    opened.ask("third")
    assert names(page) == ["first", "another"], "the newest is first"
    said = [each["content"] for each in opened.bodies[-1]["messages"] if each["role"] == "user"]
    assert said == ["first", "second", "third"]


def test_the_list_is_used_by_keys(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    page = opened.page
    for text in ("one", "two", "three"):
        page.keyboard.press("Control+k")
        opened.ask(text)
    page.locator(NAMES).first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("F2")
    page.keyboard.type("Zwei")
    page.keyboard.press("Enter")
    assert names(page) == ["three", "Zwei", "one"]
    assert page.evaluate("document.activeElement.textContent") == "Zwei"
    page.keyboard.press("F2")
    page.keyboard.type("no")
    page.keyboard.press("Escape")
    assert names(page) == ["three", "Zwei", "one"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Delete")
    assert page.inner_text("#delete-what") == "one"
    page.keyboard.press("Escape")
    page.keyboard.press("Delete")
    page.click("#delete-form .primary")
    assert names(page) == ["three", "Zwei"] and page.inner_text("#chat-title") == "three"
    page.fill("#find", "zwe")
    assert names(page) == ["Zwei"]
    page.fill("#find", "nothing")
    assert names(page) == [] and page.locator("#none").is_visible()
    again(opened)
    until(lambda: names(page) == ["three", "Zwei"])


def test_the_shown_conversation_is_deleted(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    page = opened.page
    opened.ask()
    page.locator("#conversations").get_by_label("Delete to be").click()
    page.click("#delete-form .primary")
    assert page.locator(".message").count() == 0 and names(page) == []
    again(opened)
    playwright.expect(page.locator("#welcome")).to_be_visible()


def test_a_question_is_edited(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    page = opened.page
    opened.ask("one")
    opened.ask("two")
    question = page.locator(".message.user").first
    question.hover()
    question.get_by_label("Edit", exact=True).click()
    page.keyboard.press("Escape")
    assert question.locator("form").count() == 0 and question.locator(".body").is_visible()
    question.get_by_label("Edit", exact=True).click()
    question.locator("textarea").fill("uno")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".message.assistant .cost")).to_have_count(1)
    assert [each["content"] for each in opened.bodies[-1]["messages"]] == ["uno"]
    assert question.locator(".version").inner_text() == "2/2"
    question.get_by_label("Previous version").click()
    assert page.locator(".message.user .body").all_inner_texts() == ["one", "two"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Next version"
    again(opened)
    playwright.expect(page.locator(".message.user .body")).to_have_text(["one", "two"])
    question.get_by_label("Next version").click()
    playwright.expect(page.locator(".message.user .body")).to_have_text(["uno"])
    assert names(page) == ["one"]


def test_an_answer_is_edited(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    answer = opened.ask()
    answer.get_by_label("Edit", exact=True).click()
    answer.locator("textarea").fill("**Mine**")
    answer.get_by_text("Keep").click()
    playwright.expect(answer.locator("strong")).to_have_text("Mine")
    assert answer.locator(".version").inner_text() == "2/2" and len(opened.bodies) == 1
    opened.ask("on")
    said = [each["content"] for each in opened.bodies[1]["messages"]]
    assert said == ["to be", "**Mine**", "on"]


def test_an_answer_goes_on_while_another_conversation_is_shown(
    serving: Callable[..., Any], opening: Callable[..., Opened], held: tuple[Path, dict[str, Any]]
) -> None:
    hold, options = held
    with serving(options=options) as server:
        opened = opening(server)
        page = opened.page
        opened.say("first")
        until(lambda: len(page.inner_text(".message.assistant")) > 20)
        page.keyboard.press("Control+k")
        assert page.locator("#send").is_visible() and page.locator("li.busy").count() == 1
        opened.say("second")
        until(lambda: len(page.inner_text(".message.assistant")) > 20)
        assert page.locator("li.busy").count() == 2
        hold.unlink()
        playwright.expect(page.locator(".message .cost")).to_be_visible()
        until(lambda: not page.locator("li.busy").count())
        page.locator(NAMES).get_by_text("first").click()
        assert "40 tokens" in page.inner_text(".message .cost")
        assert [len(each["messages"]) for each in opened.bodies] == [1, 1]


def test_what_came_of_an_answer_is_kept(
    serving: Callable[..., Any], opening: Callable[..., Opened], held: tuple[Path, dict[str, Any]]
) -> None:
    with serving(options=held[1]) as server:
        opened = opening(server)
        page = opened.page
        opened.say("to be")
        until(lambda: len(page.inner_text(".message.assistant .body")) > 20)
        page.click("#stop")
        playwright.expect(page.locator(".cost")).to_contain_text("stopped")
        text = page.inner_text(".message.assistant .body")
        again(opened)
        playwright.expect(page.locator(".cost")).to_contain_text("stopped")
        assert page.inner_text(".message.assistant .body") == text


def test_tabs_see_what_the_others_do(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    other = Opened(opened.page.context, server)
    opened.ask()
    until(lambda: names(other.page) == ["to be"])
    other.page.locator(NAMES).click()
    playwright.expect(other.page.locator(".message")).to_have_count(2)
    opened.ask("on")
    playwright.expect(other.page.locator(".message")).to_have_count(4)
    opened.page.locator(NAMES).press("Delete")
    opened.page.click("#delete-form .primary")
    until(lambda: not names(other.page))
    assert other.page.locator(".message").count() == 0 and not other.complaints


def test_the_page_works_where_nothing_is_kept(
    serving: Callable[..., Any], browser: Any, axe: str
) -> None:
    with serving(api_keys=("secret",)) as server:
        context = browser.new_context()
        context.add_init_script(BLOCKED)
        page = context.new_page()
        wrong: list[Any] = []
        page.on("pageerror", lambda error: wrong.append(error))
        page.goto(server.url)
        playwright.expect(page.locator("#unkept")).to_contain_text("This browser keeps nothing")
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        playwright.expect(page.locator("#state")).to_have_text("idle")
        page.click("#theme")
        for count, text in ((1, "one"), (2, "two")):
            page.fill("#text", text)
            page.press("#text", "Enter")
            playwright.expect(page.locator(".cost")).to_have_count(count)
        page.keyboard.press("Control+k")
        page.locator(NAMES).click()
        assert page.locator(".message").count() == 4
        assert faults(page, axe) == [] and not wrong
        context.close()


def test_a_full_storage_is_told_of(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    opened.page.evaluate("""() => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException('full', 'QuotaExceededError');
      };
    }""")
    opened.ask()
    playwright.expect(opened.page.locator("#unkept")).to_contain_text("storage is full")


def test_the_list_lies_over_a_narrow_window(
    server: Served, opening: Callable[..., Opened], axe: str
) -> None:
    opened = opening(server, viewport={"width": 390, "height": 700})
    page = opened.page
    opened.ask()
    shown = page.locator("#list")
    button = page.get_by_label("Conversations").and_(page.locator("button"))
    assert shown.is_hidden() and button.get_attribute("aria-expanded") == "false"
    button.click()
    playwright.expect(shown).to_be_visible()
    playwright.expect(button).to_have_attribute("aria-expanded", "true")
    assert faults(page, axe) == []
    page.keyboard.press("Escape")
    playwright.expect(shown).to_be_hidden()
    button.click()
    page.click("#new")
    playwright.expect(shown).to_be_hidden()
    assert page.locator(".message").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_list_can_be_hidden(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    page = opened.page
    page.click("#list-button")
    assert page.locator("#list").is_hidden()
    again(opened)
    assert page.locator("#list").is_hidden()
    page.click("#list-button")
    assert page.locator("#list").is_visible()


def test_settings_are_of_a_conversation(server: Served, opening: Callable[..., Opened]) -> None:
    opened = opening(server)
    page = opened.page
    opened.set(system="Be brief.", seed=3)
    opened.ask("one")
    page.keyboard.press("Control+k")
    assert page.input_value("#seed") == "3", "the next one begins with them"
    opened.set(system="", seed=4)
    opened.ask("two")
    page.locator(NAMES).get_by_text("one").click()
    assert (page.input_value("#system"), page.input_value("#seed")) == ("Be brief.", "3")
    again(opened)
    until(lambda: page.input_value("#system") == "Be brief.")
