"""The demo model's own tokens: pieces of words, counted exactly.

Counting takes linear time. `head` and `tail` read only as much of the text as the limit requires.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING

from reasond_server.llm.model import PIECE_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import Message

_MAX_LETTERS = 8
_MAX_BLANKS = 16
_MAX_PIECE_CHARACTERS = max(_MAX_LETTERS + 1, _MAX_BLANKS)

_LETTERS = rf"[^\W\d_]{{1,{_MAX_LETTERS}}}"
_DIGITS = r"\d{1,3}"
_REST = rf"\s{{1,{_MAX_BLANKS}}}|[\s\S]"
_FORWARD = re.compile(rf" ?(?:{_LETTERS}|{_DIGITS})|{_REST}")
_BACKWARD = re.compile(rf"(?:{_LETTERS}|{_DIGITS}) ?|{_REST}")


class WordPieceCounter:
    """The demo model's tokenizer: it splits any text into pieces by fixed rules.

    A piece is up to 8 letters or 3 digits with at most one space before them, or up to 16 characters of white
    space, or any other single character. So a token is at least one byte and at most 16 characters, and

    - the pieces of a text, joined, are the text;
    - `count_text(a + b) <= count_text(a) + count_text(b)`;
    - no prefix and no suffix of a text has more tokens than the whole text.

    Args:
        message_overhead: tokens of every message of a prompt in addition to its content.
    """

    def __init__(self, *, message_overhead: int = 4) -> None:
        self._message_overhead = message_overhead

    @property
    def is_exact(self) -> bool:
        """Always True: the counts are those of the demo model."""
        return True

    def split(self, text: str) -> list[str]:
        """Return the tokens of `text`, in order."""
        return list(chain.from_iterable(_cut(_FORWARD, text)))

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone."""
        return sum(map(len, _cut(_FORWARD, text)))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the tokens of all contents plus a constant for each message."""
        return sum(self._message_overhead + self.count_text(message.content) for message in messages)

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` tokens."""
        if tokens <= 0:
            return ""
        window = text[: tokens * _MAX_PIECE_CHARACTERS]
        return "".join(islice(chain.from_iterable(_cut(_FORWARD, window)), tokens))

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` tokens.

        It may begin inside a piece of `text`, because the suffix is split into pieces on its own.
        """
        if tokens <= 0:
            return ""
        # Splitting from the right gives as many pieces as splitting from the left, and gives the longest suffix.
        window = text[-tokens * _MAX_PIECE_CHARACTERS :][::-1]
        return "".join(islice(chain.from_iterable(_cut(_BACKWARD, window)), tokens))[::-1]


def _cut(pieces: re.Pattern[str], text: str) -> Iterator[list[str]]:
    """Yield the pieces of `text` in batches, each of at most `PIECE_CHARACTERS` characters.

    The last piece of a batch may continue behind the end of the batch, so it is read again with the next one.
    """
    place = 0
    while place < len(text):
        end = min(place + PIECE_CHARACTERS, len(text))
        found = pieces.findall(text, place, end)
        if end < len(text):
            end -= len(found.pop())
        yield found
        place = end
