"""Answers by extraction: a text is split into sentences, which are ranked by their relevance to a question.

The rank is BM25 over word stems, computed by SQLite's FTS5. In languages without spaces between words it finds nothing,
because a whole sentence is one word for FTS5.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise

from reasond_server.types.values import value

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
# The mark of a strategy in a long question whose middle is shown elsewhere.
_LEFT_OUT = "\n[...]\n"


def split_sentences(text: str) -> list[str]:
    """Return the sentences of `text`, unchanged but each on one line and with at most 800 characters.

    A blank line ends a sentence; an abbreviation ("Mr.", "Fig. 3.", an initial) does not. Code fence marks are removed,
    so that a quoted sentence cannot open a fence.
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
    """Return `sentence`, split between words if it is too long."""
    parts: list[str] = []
    while len(sentence) > MAX_SENTENCE_CHARACTERS:
        cut = sentence.rfind(" ", 1, MAX_SENTENCE_CHARACTERS)
        cut = cut if cut > 0 else MAX_SENTENCE_CHARACTERS
        parts.append(sentence[:cut].rstrip())
        sentence = sentence[cut:].lstrip()
    return [*parts, sentence] if sentence else parts


def split_question(question: str) -> tuple[str, str]:
    """Return the actual question in `question`, and the text around it.

    The actual question is at the end or at the beginning. In several paragraphs, it is the last or the first one if
    that has a question mark. In a single paragraph, it is the last or the first sentence if that ends with one.
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


@value
class RankedSentence:
    """A sentence, its position among the ranked sentences, and its score (above 0, higher is better)."""

    sentence: str
    position: int
    score: float


def find_content_words(question: str) -> list[str]:
    """Return at most 48 words of `question` that are not function words, in lower case."""
    words = dict.fromkeys(word for word in _WORD.findall(question.casefold()) if word not in _FUNCTION_WORDS)
    return list(words)[:_MAX_TERMS]


def rank(candidates: Sequence[str], words: Sequence[str], *, limit: int) -> list[RankedSentence]:
    """Return at most `limit` candidates that are relevant to `words`, best first; in a tie, the earlier one first.

    The score is BM25 times the share of the words that the sentence has. BM25 alone gives almost no weight to a word
    that most candidates have, which is wrong for few candidates, as in notes.

    Args:
        candidates: sentences; duplicates count once, and a sentence that is a part of another one is dropped.
        words: words from `find_content_words`, matched by their stems (Porter).
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
    """Return how many of `words` are in `text`, by their stems."""
    with closing(_build_index([text])) as connection:
        return round(_measure_shares(connection, words, {0}).get(0, 0.0) * len(words))


def _build_index(sentences: Sequence[str]) -> sqlite3.Connection:
    """Return an in-memory database of `sentences`, with row ids from 0."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE sentence USING fts5(body, tokenize = 'porter unicode61')")
    # A lone surrogate has no UTF-8 form, so the index has "?" in its place; the answer has the original.
    rows = ((place, text.encode("utf-8", "replace").decode()) for place, text in enumerate(sentences))
    connection.executemany("INSERT INTO sentence (rowid, body) VALUES (?, ?)", rows)
    return connection


def _score(connection: sqlite3.Connection, words: Sequence[str], *, pool: int) -> dict[int, float]:
    """Return the BM25 scores by row of the `pool` best rows that have any of `words`."""
    query = " OR ".join(map(_quote, words))
    return dict(
        connection.execute(
            "SELECT rowid, -bm25(sentence) FROM sentence WHERE sentence MATCH ? ORDER BY 2 DESC, 1 LIMIT ?",
            (query, pool),
        )
    )


def _measure_shares(connection: sqlite3.Connection, words: Sequence[str], places: set[int]) -> Mapping[int, float]:
    """Return the share of `words` in each row of `places`."""
    counts = Counter(
        place
        for word in words
        for (place,) in connection.execute("SELECT rowid FROM sentence WHERE sentence MATCH ?", (_quote(word),))
        if place in places
    )
    return {place: count / len(words) for place, count in counts.items()}


def _quote(word: str) -> str:
    """Return `word` as a string of the query language, so that it is not parsed as syntax."""
    return f'"{word}"'


def _drop_parts(ranked: list[RankedSentence]) -> list[RankedSentence]:
    """Drop sentences that are a part of another one in the list."""
    return [one for one in ranked if not any(one.sentence in other.sentence for other in ranked if other is not one)]
