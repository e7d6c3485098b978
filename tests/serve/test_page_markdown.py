"""A model's Markdown on the page: markdown.js and code.js, with texts that mean harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browsing import Opened, browser, opening, playwright
from serving import Served, until

__all__ = ["browser", "opening"]  # fixtures

RENDER = """async (text) => {
  const { Markdown } = await import('./page/markdown.js');
  const made = new Markdown();
  made.show(text);
  return made.box.innerHTML;
}"""
STREAM = """async (text) => {
  const { Markdown } = await import('./page/markdown.js');
  const [grown, whole] = [new Markdown(), new Markdown()];
  whole.show(text);
  for (let end = 1; end <= text.length; end += 1) grown.show(text.slice(0, end));
  await new Promise((done) => setTimeout(done, 500));
  return [grown.box.innerHTML, whole.box.innerHTML];
}"""
RICH = """# One
### Three
## Two

A **strong** *soft* ~~gone~~ `x < 1` &amp; [label](http://far.invalid/a "t") line
next

1. first
   - inner

   ```python
   def f(): return "<b>"
   ```
2. second

> quoted
> - [x] done
> - [ ] not done

| a | b |
|:-:|--:|
| 1 | `2` |

***
```
plain
```
see [ref]

[ref]: http://far.invalid/b
"""
CASES = {
    "a *b* **c** ~~d~~ `<e>`": (
        "<p>a <em>b</em> <strong>c</strong> <del>d</del> <code>&lt;e&gt;</code></p>"
    ),
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# a\n### b\n# c": (
        '<h3 class="heading h1">a</h3><h4 class="heading h3">b</h4><h3 class="heading h1">c</h3>'
    ),
    "3. a\n4. b": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>',
    "- a\n  - b": "<ul><li><p>a</p><ul><li><p>b</p></li></ul></li></ul>",
    "> a": "<blockquote><p>a</p></blockquote>",
    "---": "<hr>",
    "&lt;&#233;&#xe9;&nbsp;&constructor;": "<p>&lt;éé&nbsp;&amp;constructor;</p>",
    r"\*a\*": "<p>*a*</p>",
    "http://far.invalid/x": '<p><span class="link">http://far.invalid/x</span></p>',
    "[a](http://far.invalid)": (
        '<p><span><span class="link">a</span> '
        '<span class="address">(http://far.invalid)</span></span></p>'
    ),
    "![a](http://far.invalid/a.png)": (
        '<p><span><span class="link">Image: a</span> '
        '<span class="address">(http://far.invalid/a.png)</span></span></p>'
    ),
    "<b>a</b>": "<p>&lt;b&gt;a&lt;/b&gt;</p>",
}
BROKEN = "document.title='broken'"
HOSTILE = (
    f'<img src=x onerror="{BROKEN}">',
    f"<script>{BROKEN}</script>",
    f"a <svg onload={BROKEN}> <math><mi xlink:href='javascript:{BROKEN}'>",
    f"[a](javascript:{BROKEN})",
    f"[a](JaVaScRiPt&colon;{BROKEN})",
    f"<javascript:{BROKEN}>",
    "![a](http://far.invalid/pixel.png)",
    f'![a](x"onerror="{BROKEN})',
    f"[![a](http://far.invalid/1.png)](data:text/html,<script>{BROKEN}</script>)",
    '<iframe src="http://far.invalid/"></iframe>\n\n<link rel=stylesheet href=//far.invalid/a.css>',
    "<style>@import url(http://far.invalid/a.css)</style>",
    f'<a href="http://far.invalid/" onclick="{BROKEN}">a</a>',
    '<form action="http://far.invalid/"><button>go</button></form>',
    '<meta http-equiv="refresh" content="0;url=http://far.invalid/">',
    f"```html\n<img src=x onerror={BROKEN}><style>a{{b:url(//far.invalid)}}</style>\n```",
    f"```<img/src=x/onerror={BROKEN}> a\nx\n```",
    f'```python"><img src=x onerror={BROKEN}>\nx\n```',
    f"| <img src=x onerror={BROKEN}> |\n|--|\n| [a](javascript:{BROKEN}) |",
    f"- [ ] <img src=x onerror={BROKEN}>\n\n# <script>{BROKEN}</script>",
    f"[a]\n\n[a]: javascript:{BROKEN}\n[__proto__]: x\n[constructor]: y",
    "> " * 5000 + "deep",
    "".join("  " * depth + "- a\n" for depth in range(200)),
    "[" * 5000 + "](" * 5000,
)
TAGS = "p h3 h4 h5 h6 ul ol li blockquote hr table thead tbody tr th td strong em del code br pre "
TAGS += "div span button svg use"
ATTRIBUTES = "class start tabindex role aria-label aria-hidden title type href"
SHAPES = """(box) => [...box.querySelectorAll('*')].flatMap((each) => [
  each.localName, ...[...each.attributes].map(({ name, value }) => (
    name === 'href' ? `href=${value}` : `@${name}`
  )),
])"""


@pytest.fixture
def page(server: Served, opening: Callable[..., Opened]) -> Any:
    """The page, on which nothing was said."""
    return opening(server).page


def test_markdown(page: Any) -> None:
    assert {text: page.evaluate(RENDER, text) for text in CASES} == CASES


def test_a_table_and_a_list_of_tasks(page: Any) -> None:
    found = page.evaluate(RENDER, RICH)
    assert '<th class="center">a</th><th class="right">b</th>' in found
    assert '<td class="right"><code>2</code></td>' in found
    assert 'aria-label="done">☑</span><p>done</p>' in found
    assert 'aria-label="to do">☐</span><p>not done</p>' in found
    assert '<span class="address">(http://far.invalid/b)</span>' in found


def test_a_text_that_grows_is_shown_as_a_whole_one(page: Any) -> None:
    grown, whole = page.evaluate(STREAM, RICH)
    assert grown == whole and whole.count("<h") >= 4 and 'class="of-' in whole


def test_parts_that_have_not_changed_stay(page: Any) -> None:
    same = """async () => {
      const { Markdown } = await import('./page/markdown.js');
      const made = new Markdown();
      const seen = [];
      for (const text of ['a\\n\\n```js\\nx', 'a\\n\\n```js\\nx = 1\\n```\\n\\nb', 'a\\n\\nc']) {
        made.show(text);
        seen.push([...made.box.children]);
      }
      const [one, two, three] = seen;
      return [one[0] === two[0] && two[0] === three[0], one[1] === two[1], three.length];
    }"""
    assert page.evaluate(same) == [True, True, 2]


@pytest.mark.parametrize("language", ["python", "c", "tsx", "html", "toml", "console"])
def test_code_has_colours_and_keeps_its_text(page: Any, language: str) -> None:
    code = "/* <a href='x'> */ if x == 1: return '&amp;' # b\n$ echo \"1\"\n[a]\nb = 2"
    coloured = """async ([text, code]) => {
      const { Markdown } = await import('./page/markdown.js');
      const made = new Markdown();
      made.show(text);
      const pre = made.box.querySelector('pre code');
      for (let wait = 0; wait < 600 && !pre.children.length; wait += 1) {
        await new Promise((done) => setTimeout(done, 100));
      }
      return [pre.textContent === code, pre.children.length > 0];
    }"""
    assert page.evaluate(coloured, [f"```{language}\n{code}\n```", code]) == [True, True]


def test_every_language_can_be_loaded(server: Served, page: Any) -> None:
    loaded = """async () => {
      const { NAMES, knowing } = await import('./page/code.js');
      const found = [];
      for (const name of new Set(NAMES.values())) {
        const { _emitter: scopes } = (await knowing(name)).highlight('x = 1', { language: name });
        found.push(scopes.root.textContent);
      }
      return found;
    }"""
    assert page.evaluate(loaded) == ["x = 1"] * 18


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_that_a_model_writes_becomes_markup(
    server: Served, opening: Callable[..., Opened], text: str
) -> None:
    opened = opening(server)
    page = opened.page
    before = len(opened.requests)
    found = page.evaluate(
        f"""async (text) => {{
          const {{ Markdown }} = await import('./page/markdown.js');
          const made = new Markdown();
          made.show(text);
          document.querySelector('#messages').append(made.box);
          await new Promise((done) => setTimeout(done, 300));
          return ({SHAPES})(made.box);
        }}""",
        text,
    )
    allowed = {*TAGS.split(), *(f"@{name}" for name in ATTRIBUTES.split())}
    assert found and set(found) - allowed <= {"href=#i-copy"}
    asked = [each.url for each in opened.requests[before:]]
    assert all(url.startswith(server.url + "/") for url in asked)
    assert page.title() == "scripted \N{EN DASH} suffice" and page.url.startswith(server.url)


def test_hostile_answers_and_questions(
    serving: Callable[..., Any], opening: Callable[..., Opened]
) -> None:
    says = "\n\n".join(each for each in HOSTILE if len(each) < 500)
    with serving(options={"says": says, "context": 4096}) as server:
        opened = opening(server)
        opened.set(max_tokens=len(says) // 10 + 1)
        opened.ask(HOSTILE[0])
        assert opened.page.locator(".message.user .body").inner_text() == HOSTILE[0]
        assert (
            opened.page.locator("#messages :is(img, script, iframe, a, form, style)").count() == 0
        )
        until(lambda: opened.page.locator("#messages pre .of-name").count())
        assert opened.page.title() == "scripted \N{EN DASH} suffice"
        assert all(each.url.startswith(server.url + "/") for each in opened.requests)


def test_code_is_copied(serving: Callable[..., Any], opening: Callable[..., Opened]) -> None:
    with serving(options={"says": "```py\nx = '<b>'\n```"}) as server:
        opened = opening(server, permissions=["clipboard-read", "clipboard-write"])
        answer = opened.ask()
        assert answer.locator(".head span").inner_text() == "py"
        answer.locator(".head").get_by_label("Copy").click()
        playwright.expect(answer.locator(".head use")).to_have_attribute("href", "#i-check")
        assert opened.page.evaluate("navigator.clipboard.readText()") == "x = '<b>'"
