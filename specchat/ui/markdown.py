"""Reply text → HTML that cannot run, load or hide anything.

Markdown is rendered here rather than in the browser so that safety needs no agreement between two
parsers: raw HTML, images, references, entities and backslash escapes are not part of the dialect, so
their characters stay visible; everything else leaves through the renderer's own escaping.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

NOT_SPOKEN = [
    "html_block",
    "html_inline",
    "image",
    "autolink",
    "linkify",
    "entity",
    "escape",
    "reference",
    "lheading",
]
"""Rules switched off. lheading would turn a paragraph into a heading while its list is being typed."""


class _Renderer(RendererHTML):
    """Code with a copy button; links as their text followed by the address, never a link to press."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
        words = tokens[idx].info.split()
        return _code(tokens[idx].content, words[0] if words else "")

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
        return _code(tokens[idx].content, "")

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
        return '<span class="sc-link">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
        depth = 0
        for token in reversed(tokens[: idx + 1]):
            depth += (token.type == "link_close") - (token.type == "link_open")
            if depth == 0:
                return f'</span> <span class="sc-url">({escape(str(token.attrs.get("href", "")))})</span>'
        return "</span>"


def _code(content: str, language: str) -> str:
    """A code block: its language, a copy button, the text. The page's script reads the text from the block."""
    label = escape(language) if language else "code"
    return (
        f'<div class="sc-code"><div class="sc-code-head"><span>{label}</span>'
        '<button type="button" class="sc-copy" data-copy="1" aria-label="Copy this code">Copy</button></div>'
        f'<pre tabindex="0"><code>{escape(content)}</code></pre></div>'
    )


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    return parser.enable(["table", "strikethrough"]).disable(NOT_SPOKEN, ignoreInvalid=True)


_MARKDOWN = _parser()


def render(text: str) -> str:
    """The whole text as HTML."""
    html: str = _MARKDOWN.render(_clean(text))
    return html


_INVISIBLE = {code: "\ufffd" for code in [*range(32), 127] if chr(code) not in "\n\t"}


def _clean(text: str) -> str:
    """Control characters have no glyph and may not appear in HTML: shown as the replacement mark."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_INVISIBLE)


class Growing:
    """Markdown of a text that only grows: finished blocks are rendered once.

    `update` costs the size of the last block, not of the reply. `settled` only ever grows, so a
    difference of two updates is an append and a small tail.
    """

    def __init__(self) -> None:
        self.settled = ""
        self.tail = ""
        self._from = 0
        self._lines = 0

    def update(self, text: str) -> None:
        """text: the whole reply so far; what was given before must be a prefix of it."""
        rest = _clean(text)[self._from :]
        lines = rest.count("\n")
        if lines > self._lines:
            cut = _last_block(rest[: rest.rindex("\n")])
            self.settled += render(rest[:cut]) if cut else ""
            self._from += cut
            rest = rest[cut:]
            self._lines = rest.count("\n")
        self.tail = render(rest)

    @property
    def html(self) -> str:
        return self.settled + self.tail


def _last_block(text: str) -> int:
    """Where the last top-level block of complete lines begins: what stands before it cannot change any more."""
    starts = [
        token.map[0]
        for token in _MARKDOWN.parse(text)
        if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return 0
    return sum(len(line) + 1 for line in text.split("\n", starts[-1])[: starts[-1]])
