"""Text into sentences, and a question into what it asks and the text it brings along."""

from __future__ import annotations

import re
from itertools import pairwise

MAX_SENTENCE_CHARACTERS = 800

_PARAGRAPH = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_FENCE_MARK = re.compile(r"`{3,}|~{3,}")
_END = re.compile(r"(?<=[.!?…])[\"'”\u2019)\]_]{0,4}\s+(?=[\"'“\u2018(\[_]{0,4}[A-Z0-9À-ÞŒ])|(?<=[。！？])")  # noqa: RUF001 - full-width marks end sentences
_ABBREVIATION = re.compile(
    r"(?:(?<![A-Za-z])(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Figs?|FIG|Prop|PROP|Sect|Part|Lect|Optic|Art|Defin|DEFIN|Exper|EXPER|"
    r"Theor|THEOR|Prob|PROB|Obs|Qu|No|Vol|Ch|pp?|cf|vs|etc|viz|approx|ca|[Ee]\.g|i\.e|Inc|Ltd|Co|[A-Za-z]|[IVXLC]+)_?)"
    r"\.[\"'”\u2019)\]_]{0,4}\s+$",
)
_LOOK_BACK = 16
# How a strategy marks that the middle of a long question is shown elsewhere.
_LEFT_OUT = "\n[...]\n"


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`, verbatim but on one line each; none is longer than 800 characters.

    A blank line ends a sentence, an abbreviation ("Mr.", "Fig. 3.", an initial) does not. Marks of code fences
    are left out, so that a sentence that is quoted cannot open one.
    """
    found: list[str] = []
    for paragraph in _PARAGRAPH.split(_FENCE.sub("\n", text)):
        for sentence in _split(paragraph):
            found.extend(_bounded(" ".join(_FENCE_MARK.sub("", sentence).split())))
    return found


def _split(paragraph: str) -> list[str]:
    """Return the sentences of one paragraph with their white space."""
    cuts = [0]
    for end in _END.finditer(paragraph):
        before = paragraph[max(cuts[-1], end.start() - _LOOK_BACK) : end.end()]
        if not _ABBREVIATION.search(before):
            cuts.append(end.end())
    cuts.append(len(paragraph))
    return [paragraph[start:end] for start, end in pairwise(cuts)]


def _bounded(sentence: str) -> list[str]:
    """Return `sentence`, cut between words where it is too long."""
    parts: list[str] = []
    while len(sentence) > MAX_SENTENCE_CHARACTERS:
        cut = sentence.rfind(" ", 1, MAX_SENTENCE_CHARACTERS)
        cut = cut if cut > 0 else MAX_SENTENCE_CHARACTERS
        parts.append(sentence[:cut].rstrip())
        sentence = sentence[cut:].lstrip()
    return [*parts, sentence] if sentence else parts


def split_question(question: str) -> tuple[str, str]:
    """Return what `question` asks and the text around it.

    What is asked stands at the end or at the beginning: the last paragraph that holds a question mark in a long
    question, or the first; inside a single paragraph the last or the first sentence that ends with one.
    """
    paragraphs = [part.strip() for part in _PARAGRAPH.split(question.replace(_LEFT_OUT, "\n\n")) if part.strip()]
    if len(paragraphs) > 1:
        for place in (-1, 0):
            if "?" in paragraphs[place]:
                asked, rest = _split_paragraph(paragraphs[place])
                others = paragraphs[:-1] if place else paragraphs[1:]
                return asked, "\n\n".join([*others, rest] if place else [rest, *others]).strip()
    return _split_paragraph(question)


def _split_paragraph(paragraph: str) -> tuple[str, str]:
    parts = [part.strip() for part in _split(paragraph) if part.strip()]
    for place in (-1, 0):
        if len(parts) > 1 and parts[place].endswith("?"):
            others = parts[:-1] if place else parts[1:]
            return parts[place], " ".join(others)
    return paragraph.strip(), ""
