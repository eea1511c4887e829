"""Sentences ranked by what a question asks: BM25 as SQLite's FTS5 computes it, over word stems.

Languages that put no blanks between words are one long word to it: there it finds nothing and says so.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
class Ranked:
    """A sentence, its place among those that were ranked, and its score (higher is better, above 0)."""

    sentence: str
    position: int
    score: float


def content_words(question: str) -> list[str]:
    """Return the words of `question` that carry its content, lower case, at most 48."""
    words = dict.fromkeys(word for word in _WORD.findall(question.casefold()) if word not in _FUNCTION_WORDS)
    return list(words)[:_MAX_TERMS]


def rank(candidates: Sequence[str], words: Sequence[str], *, limit: int) -> list[Ranked]:
    """Return the up to `limit` candidates that bear on `words`, best first; of equals the earlier first.

    The score is BM25 times the share of the words that the sentence has: among few candidates, as in notes, BM25
    alone takes a word that most of them have for one that says nothing.

    Args:
        candidates: sentences; a sentence that occurs twice counts once, and one that is part of another not at all.
        words: as from `content_words`; each is matched by its stem (Porter), literally otherwise.
        limit: most sentences to return.
    """
    if not words or not candidates:
        return []
    unique = list(dict.fromkeys(candidates))
    with closing(_indexed(unique)) as connection:
        scores = _scores(connection, words, pool=_POOL * limit)
        shares = _shares(connection, words, set(scores))
    found = [
        Ranked(sentence=unique[place], position=place, score=score * shares[place]) for place, score in scores.items()
    ]
    found.sort(key=lambda one: (-one.score, one.position))
    return _without_parts(found[: 2 * limit])[:limit]


def shared(text: str, words: Sequence[str]) -> int:
    """Return how many of `words` stand in `text`, by their stems."""
    with closing(_indexed([text])) as connection:
        return round(_shares(connection, words, {0}).get(0, 0.0) * len(words))


def _indexed(sentences: Sequence[str]) -> sqlite3.Connection:
    """Return a database in memory that holds `sentences`, row ids counted from 0."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE sentence USING fts5(body, tokenize = 'porter unicode61')")
    # A lone surrogate has no UTF-8 form; the index gets a mark in its place, the answer the original.
    rows = ((place, text.encode("utf-8", "replace").decode()) for place, text in enumerate(sentences))
    connection.executemany("INSERT INTO sentence (rowid, body) VALUES (?, ?)", rows)
    return connection


def _scores(connection: sqlite3.Connection, words: Sequence[str], *, pool: int) -> dict[int, float]:
    """Return BM25 by row for the `pool` best rows that have any of `words`."""
    query = " OR ".join(map(_quoted, words))
    return dict(
        connection.execute(
            "SELECT rowid, -bm25(sentence) FROM sentence WHERE sentence MATCH ? ORDER BY 2 DESC, 1 LIMIT ?",
            (query, pool),
        )
    )


def _shares(connection: sqlite3.Connection, words: Sequence[str], places: set[int]) -> Mapping[int, float]:
    """Return for each of `places` which share of `words` it has."""
    counts = Counter(
        place
        for word in words
        for (place,) in connection.execute("SELECT rowid FROM sentence WHERE sentence MATCH ?", (_quoted(word),))
        if place in places
    )
    return {place: count / len(words) for place, count in counts.items()}


def _quoted(word: str) -> str:
    """Return `word` as a string of the query language, so that no word is taken for syntax."""
    return f'"{word}"'


def _without_parts(ranked: list[Ranked]) -> list[Ranked]:
    """Drop sentences that are part of another one in the list."""
    return [one for one in ranked if not any(one.sentence in other.sentence for other in ranked if other is not one)]
