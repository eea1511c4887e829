"""Answers by extraction: a text cut into sentences, ranked by what a question asks.

The rank is BM25 as SQLite's FTS5 computes it, over word stems. Languages that put no blanks between words are one long
word to it: there it finds nothing and says so.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


def split_sentences(text: str) -> list[str]:
    """Return the sentences of `text`, verbatim but on one line each; none is longer than 800 characters.

    A blank line ends a sentence, an abbreviation ("Mr.", "Fig. 3.", an initial) does not. Marks of code fences
    are left out, so that a sentence that is quoted cannot open one.
    """
    found: list[str] = []
    for paragraph in _PARAGRAPH.split(_FENCE.sub("\n", text)):
        for sentence in _split(paragraph):
            found.extend(_cut_long(" ".join(_FENCE_MARK.sub("", sentence).split())))
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


def _cut_long(sentence: str) -> list[str]:
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


_MAX_TERMS = 48
_POOL = 8
_WORD = re.compile(r"[^\W_]+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        """
        a about according after all also am an and any are as at be because been before being between both but by can
        could did do does doing don down during each few for from further had has have having he her here hers him his
        how i if in into is isn it its itself just let like many may me might more most much must my no nor not of off
        on once one only or other our out over own please s same say says shall she should so some such t tell than that
        the their them then there these they this those through to too under until up upon us very was we were what when
        where whether which while who whom whose why will with would you your passage text document material author
        question answer find give explain describe state mention mentioned
        """
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSentence:
    """A sentence, its place among those that were ranked, and its score (higher is better, above 0)."""

    sentence: str
    position: int
    score: float


def find_content_words(question: str) -> list[str]:
    """Return the words of `question` that carry its content, lower case, at most 48."""
    words = dict.fromkeys(word for word in _WORD.findall(question.casefold()) if word not in _FUNCTION_WORDS)
    return list(words)[:_MAX_TERMS]


def rank(candidates: Sequence[str], words: Sequence[str], *, limit: int) -> list[RankedSentence]:
    """Return the up to `limit` candidates that bear on `words`, best first; of equals the earlier first.

    The score is BM25 times the share of the words that the sentence has: among few candidates, as in notes, BM25
    alone takes a word that most of them have for one that says nothing.

    Args:
        candidates: sentences; a sentence that occurs twice counts once, and one that is part of another not at all.
        words: as from `find_content_words`; each is matched by its stem (Porter), literally otherwise.
        limit: most sentences to return.
    """
    if not words or not candidates:
        return []
    unique = list(dict.fromkeys(candidates))
    with closing(_build_index(unique)) as connection:
        scores = _score(connection, words, pool=_POOL * limit)
        shares = _measure_shares(connection, words, set(scores))
    found = [
        RankedSentence(sentence=unique[place], position=place, score=score * shares[place])
        for place, score in scores.items()
    ]
    found.sort(key=lambda one: (-one.score, one.position))
    return _drop_parts(found[: 2 * limit])[:limit]


def count_shared(text: str, words: Sequence[str]) -> int:
    """Return how many of `words` stand in `text`, by their stems."""
    with closing(_build_index([text])) as connection:
        return round(_measure_shares(connection, words, {0}).get(0, 0.0) * len(words))


def _build_index(sentences: Sequence[str]) -> sqlite3.Connection:
    """Return a database in memory that holds `sentences`, row ids counted from 0."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE sentence USING fts5(body, tokenize = 'porter unicode61')")
    # A lone surrogate has no UTF-8 form; the index gets a mark in its place, the answer the original.
    rows = ((place, text.encode("utf-8", "replace").decode()) for place, text in enumerate(sentences))
    connection.executemany("INSERT INTO sentence (rowid, body) VALUES (?, ?)", rows)
    return connection


def _score(connection: sqlite3.Connection, words: Sequence[str], *, pool: int) -> dict[int, float]:
    """Return BM25 by row for the `pool` best rows that have any of `words`."""
    query = " OR ".join(map(_quote, words))
    return dict(
        connection.execute(
            "SELECT rowid, -bm25(sentence) FROM sentence WHERE sentence MATCH ? ORDER BY 2 DESC, 1 LIMIT ?",
            (query, pool),
        )
    )


def _measure_shares(connection: sqlite3.Connection, words: Sequence[str], places: set[int]) -> Mapping[int, float]:
    """Return for each of `places` which share of `words` it has."""
    counts = Counter(
        place
        for word in words
        for (place,) in connection.execute("SELECT rowid FROM sentence WHERE sentence MATCH ?", (_quote(word),))
        if place in places
    )
    return {place: count / len(words) for place, count in counts.items()}


def _quote(word: str) -> str:
    """Return `word` as a string of the query language, so that no word is taken for syntax."""
    return f'"{word}"'


def _drop_parts(ranked: list[RankedSentence]) -> list[RankedSentence]:
    """Drop sentences that are part of another one in the list."""
    return [one for one in ranked if not any(one.sentence in other.sentence for other in ranked if other is not one)]
