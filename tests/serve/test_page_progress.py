"""The line of the page that says how far a prompt is, in a real browser: answer.js, chat.js."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from browsing import Opened, browser, opening, playwright

__all__ = ["browser", "opening"]  # fixtures


def test_the_page_shows_how_far_a_prompt_is(
    serving: Callable[..., Any], opening: Callable[..., Opened]
) -> None:
    with serving(options={"reads": 1, "step_seconds": 0.3}) as server:
        opened = opening(server)
        opened.page.click("#settings-button")
        opened.page.fill("#max_tokens", "2")
        opened.say("to be or not to be")
        answer = opened.page.locator(".message.assistant")
        line = answer.locator(".reading")
        playwright.expect(line).to_have_text(re.compile(r"^reading \d+ of \d+ tokens$"))
        playwright.expect(answer.locator(".cost")).to_be_visible()
        assert line.count() == 0 and opened.bodies[0]["return_progress"] is True
