"""Numbers in English words."""

from __future__ import annotations

from typing import Final

from reasond_server.dialects.units import MULTIPLES, NUMBER_WORDS

_MOST_WORDS: Final = 12


def read_number_words(text: str) -> str:
    """Return the digits of a number in words, such as "two hundred and five"; empty for any other text."""
    words = text.replace("-", " ").replace(" and ", " ").split()
    if not words or len(words) > _MOST_WORDS or words[0] not in NUMBER_WORDS:
        return ""
    total, group, room = 0, 0, 0
    for place, word in enumerate(words):
        number, multiple = NUMBER_WORDS.get(word), MULTIPLES.get(word)
        if number is not None:
            # Room is what may follow: below 100 behind a hundred, below 10 behind "twenty".
            if place and not 0 < number < room:
                return ""
            group, room = group + number, 10 if word.endswith("ty") else 0
        elif multiple == MULTIPLES["hundred"] and 0 < group < multiple:
            group, room = group * multiple, 100
        elif multiple and group:
            total, group, room = total + group * multiple, 0, 100
        else:
            return ""
    return str(total + group)
