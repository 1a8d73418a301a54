"""A Markdown extension: formulas become MathML while the site is built, so that no script draws
them in the browser.

Inline `$`x_i`$` and fenced blocks of the language `math`, as GitHub writes them.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

BLOCK = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


class Inline(InlineProcessor):
    """A formula in a line of text."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element | str, int, int]:
        return self.md.htmlStash.store(convert(m.group(1))), m.start(0), m.end(0)


class Blocks(Preprocessor):
    """Formulas on lines of their own."""

    def run(self, lines: list[str]) -> list[str]:
        def stashed(found: re.Match[str]) -> str:
            formula = convert(found.group(1), display="block")
            return self.md.htmlStash.store(f'<div class="formula" tabindex="0">{formula}</div>')

        return BLOCK.sub(stashed, "\n".join(lines)).split("\n")


class MathML(Extension):
    """Both kinds of formula."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(
            Blocks(md), "mathml", 28
        )  # before fenced code, after blank space is made even
        md.inlinePatterns.register(Inline(r"\$`(.+?)`\$", md), "mathml", 200)  # before backticks


def makeExtension(**settings: object) -> MathML:
    """What Markdown asks a module for."""
    return MathML(**settings)
