"""Reply text → HTML: nothing runs, nothing is hidden, and growing piece by piece changes nothing."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.ui.markdown import Growing, render

TAGS = {"p", "br", "strong", "em", "s", "code", "pre", "div", "span", "button", "ul", "ol", "li", "blockquote", "hr",
        "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"}  # fmt: skip


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html.replace(">Copy</button>", "></button>")))


@pytest.mark.parametrize(
    "text",
    [
        "List<int> a<b & c &amp; <channel>thought</channel>",
        "<img src=x onerror=alert(1)><script>alert(1)</script>",
        "<style>body{display:none}</style><iframe src=//x></iframe>",
        "press [this](javascript:alert(1)) or [that](data:text/html,x)",
        "backslashes \\(x\\) \\[y\\] \\< and &lt; &#60; stay",
    ],
)
def test_every_visible_character_stays(text):
    assert text_of(render(text)).strip() == text


def test_code_is_escaped_once():
    html = render('```html\n<b class="x">a &amp; b</b>\n```')
    assert "&lt;b class=&quot;x&quot;&gt;a &amp;amp; b&lt;/b&gt;" in html
    assert "`a<b`" not in render("`a<b`")
    assert "<code>a&lt;b</code>" in render("`a<b`")


def test_images_and_links_load_nothing_but_say_where_they_point():
    html = render("![pixel](http://203.0.113.7/p.png) and [text](http://203.0.113.7/page)")
    assert "<img" not in html
    assert "<a" not in html
    assert "http://203.0.113.7/p.png" in text_of(html)
    assert "http://203.0.113.7/page" in text_of(html)


def test_ordinary_markdown_is_rendered():
    html = render(
        "# Head\n\nA **bold** *word*\nnext line\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n"
    )
    for part in (
        "<h1>Head</h1>",
        "<strong>bold</strong>",
        "<br",
        "<li>one</li>",
        "<td>1</td>",
        "<blockquote>",
    ):
        assert part in html


FRAGMENTS = ["a ", "word", "\n", "\n\n", "- x", "1. y", "2. z", "```", "```py\n", "| a | b |\n|---|---|\n", "> q", "    code",
             "# h", "**b", "** ", "`c", "<int>", "<script>", "\r\n", "\r", "\t", "~~~", "---", "* i", "![x](y)", "[r]: z",
             "&amp;", "\\*", "\x00", "\x0b", "\x85", "\u2028"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25))
def test_growing_piece_by_piece_ends_as_the_whole(pieces):
    growing, text, before = Growing(), "", ""
    for piece in pieces:
        text += piece
        growing.update(text)
        assert growing.settled.startswith(before), "what is settled never changes"
        before = growing.settled
    assert growing.html == render(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_no_text_makes_a_tag_of_its_own(text):
    html = render(text)
    assert {name.lower() for name in re.findall(r"</?([a-zA-Z0-9-]+)", html)} <= TAGS
    for tag in re.findall(r"<[^>]*>", html):
        assert not re.search(r"\son\w+=|src=|href=|javascript:", tag), tag
