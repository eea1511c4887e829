"""Words that a preview keeps first: identifying names, signs of failure, and the words of a question.

Of a page in HTML they are those of its text: what a reader sees, with the addresses of its links. Tags are found in one
pass over the text, because parsers take quadratic time for some broken pages.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_LOOKED_AT: Final = 20_000
_LEAST_TAGS: Final = 5
_MOST_ATTRIBUTES: Final = 4_000
_IS_PAGE: Final = re.compile(r"\s*(?:<!doctype html|<html\b)", re.IGNORECASE)
_CLOSING: Final = re.compile(r"</(?:a|p|div|li|td|tr|span|h[1-6]|ul|table|body)>", re.IGNORECASE)
_NAME: Final = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]*")
_HREF: Final = re.compile(r"\bhref\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))", re.IGNORECASE)
_UNSEEN: Final = frozenset({"script", "style", "svg", "noscript", "template"})
_INLINE: Final = frozenset({"a", "b", "i", "em", "strong", "span", "code", "small", "sub", "sup", "u", "mark", "abbr"})


def read_page(text: str) -> str | None:
    """Return the lines that a reader of the page `text` sees, links as `text <address>`; None if it is no page."""
    if not _IS_PAGE.match(text) and len(_CLOSING.findall(text[:_LOOKED_AT])) < _LEAST_TAGS:
        return None
    first, *parts = text.split("<")
    seen, hidden, address = [first], "", ""
    for part in parts:
        tag, end, rest = part.partition(">")
        found = _NAME.match(tag)
        name = found[0].lower() if found and end else ""
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
            if hidden:
                continue
        elif name in _UNSEEN and not tag.endswith("/"):
            hidden = name
            continue
        if not name:
            seen.append("" if part.startswith("!") else f"<{part}")
            continue
        if name == "/a" and address:
            seen.append(f" {address}")
            address = ""
        elif name == "a":
            link = _HREF.search(tag[:_MOST_ATTRIBUTES])
            address = (link[1] or link[2] or link[3] or "") if link else ""
        seen.append(rest if name.lstrip("/") in _INLINE else f"\n{rest}")
    lines = (" ".join(line.split()) for line in html.unescape("".join(seen)).splitlines())
    return "\n".join(line for line in lines if line)


_NAME_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_QUERY_WORD: Final = re.compile(r"\w(?:[\w./:#@-]*\w)?")
_IDENTIFIERS: Final = (
    frozenset({"id", "ids", "uuid", "guid", "key", "sha", "handle"}),
    frozenset({"status", "state", "error", "errors", "code"}),
    frozenset({"url", "uri", "href", "link", "path", "name", "number", "slug", "file"}),
    frozenset({"cursor", "next"}),
)
_STATUSES: Final = frozenset(
    {
        *("status", "state", "level", "severity", "outcome", "code", "kind", "type", "phase", "conclusion", "verdict"),
        *("ok", "success", "passed", "priority"),
    }
)
_ERRORS: Final = frozenset({"error", "errors", "exception", "failure", "traceback"})
_VERDICTS: Final = frozenset({"ok", "success", "passed"})
_FAILED: Final = re.compile(
    r"(?:(?:time[d_ -]?|timed[_ -])out|err(?:or|ors|ored)?|fail(?:ed|ing|ure)?|fatal|critical|crashed|panic|exception"
    r"|aborted|denied|rejected|refused|unreachable|5xx)",
    re.IGNORECASE,
)
_FAILURE_LINE: Final = re.compile(
    r"\b(?:\w*errors?|\w*exception|traceback|fatal|fail(?:ed|ing|s|ure|ures)?|panic(?:ked)?|critical|denied|refused"
    r"|timed out|segfault|segmentation fault|core dumped|out of memory|oom(?:-kill\w*)?|killed|aborted|unreachable"
    r"|5\d\d (?:internal|bad gateway|service|gateway)|fehler|fehlgeschlagen|ausnahme|abgebrochen|erreurs?|échec|échoué"
    r"|fallo|falló|fallido|errore|fallit[oa]|erro|falha|falhou|fout|mislukt|błąd|ошибк\w*|сбой|отказ\w*|помилк\w*"
    r"|hata|ba\u015far\u0131s\u0131z|lỗi|خطأ|فشل)\b"
    r"|(?:\bstatus(?: code)?|\bcode|http/\d(?:\.\d)?\"?)[=: ]+5\d\d\b"
    r"|错误|錯誤|失败|失敗|异常|崩溃|エラー|例外|오류|실패|त्रुटि",
    re.IGNORECASE,
)
_WARNING_LINE: Final = re.compile(
    r"\b(?:warn(?:ing)?|warnung|avertissement|advertencia|aviso|avviso|предупреждение)\b|警告|경고", re.IGNORECASE
)
_LINK: Final = re.compile(r"https?://[^\s<>\"'`)\]}|]+|(?<=\]\()[^)\s]+")
_HEADING: Final = re.compile(r"\s{0,3}#{1,6}\s")
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_SIGNED_CHARACTERS: Final = 200
_SIGNED_WORDS: Final = 6
_LEAST_REPEATED: Final = 20
_NO_FAILURES: Final = frozenset({"", "none", "null", "ok", "no", "false", "0", "-"})
# Words of one or two letters are passed over anyway.
_STOP_WORDS: Final = frozenset(
    _QUERY_WORD.findall(
        """
        all and any are can does find for from get give has have how list many most not our show tell than that the
        their them there they this was were what when where which who why will with you your
        """
    )
)
_LEAST_ERROR_CODE: Final = 400
_MOST_ERROR_CODE: Final = 599
_LEAST_LETTERS: Final = 3
_MAX_QUERY_CHARACTERS: Final = 4_000
_MAX_QUERY_WORDS: Final = 32
_MAX_LINE_CHARACTERS: Final = 2_000


@lru_cache(maxsize=1_024)
def split_name(name: str) -> frozenset[str]:
    """Return the words of a field's name in small letters: `nextPageURL` has next, page and url."""
    return frozenset(word.lower() for word in _NAME_WORD.findall(name[:128]))


def rank_identifier(name: str) -> int | None:
    """Return how much a field of this name identifies its object, 0 most; None if it does not."""
    words = split_name(name)
    return next((rank for rank, names in enumerate(_IDENTIFIERS) if words & names), None)


def is_status(name: str) -> bool:
    """Return whether a field of this name tells a state, of which there are few."""
    return bool(split_name(name) & _STATUSES)


def is_failure_field(name: str, value: object) -> bool:
    """Return whether the field says that something failed."""
    words = split_name(name)
    if isinstance(value, bool):
        return value is not bool(words & _VERDICTS) and bool(words & (_VERDICTS | _ERRORS))
    if isinstance(value, int):
        return bool(words & {"code", "status"}) and _LEAST_ERROR_CODE <= value <= _MOST_ERROR_CODE
    if isinstance(value, str):
        if words & _ERRORS and not words & {"code", "rate", "count"}:
            return value.strip().lower() not in _NO_FAILURES
        return bool(words & _STATUSES) and _FAILED.fullmatch(value.strip()) is not None
    return bool(words & _ERRORS) and bool(value) and isinstance(value, dict | list)


def is_failure_line(line: str) -> bool:
    """Return whether a line of a log tells of a failure."""
    return _FAILURE_LINE.search(line[:_MAX_LINE_CHARACTERS]) is not None


def is_warning_line(line: str) -> bool:
    """Return whether a line of a log warns."""
    return _WARNING_LINE.search(line[:_MAX_LINE_CHARACTERS]) is not None


def is_heading(line: str) -> bool:
    """Return whether the line is a heading of Markdown."""
    return _HEADING.match(line) is not None


def find_links(line: str) -> Sequence[str]:
    """Return the addresses in a line, and the targets of its links in Markdown."""
    return [one.rstrip(".,;:") for one in _LINK.findall(line)] if "://" in line or "](" in line else ()


def find_rare(lines: Sequence[str]) -> set[int]:
    """Return the numbers of lines that are unlike all others of a text whose lines repeat, whatever their language.

    Lines are alike whose first words are, without numbers.
    """
    signs = [" ".join(_NO_LETTERS.sub(" ", line[:_SIGNED_CHARACTERS]).split()[:_SIGNED_WORDS]) for line in lines]
    counts = Counter(signs)
    if len(lines) < _LEAST_REPEATED or len(counts) > len(lines) // 10:
        return set()
    return {at for at, sign in enumerate(signs) if sign and counts[sign] == 1}


def pick_query_words(query: str) -> Sequence[str]:
    """Return the words of `query` by which places are found: no common words, each once, in small letters."""
    found = _QUERY_WORD.findall(query[:_MAX_QUERY_CHARACTERS].lower())
    words = [one for one in found if one not in _STOP_WORDS and (len(one) >= _LEAST_LETTERS or one.isdigit())]
    return tuple(dict.fromkeys(words))[:_MAX_QUERY_WORDS]


def find_hits(texts: Sequence[str], words: Sequence[str]) -> set[int]:
    """Return the numbers of the `texts` that hold a selective one of `words`.

    A word that more than a fifth of the texts hold tells nothing of them and is passed over.
    """
    if not words:
        return set()
    most = max(3, len(texts) // 5)
    places: dict[str, list[int]] = {word: [] for word in words}
    for at, text in enumerate(texts):
        folded = text.lower()
        for word in words:
            if word in folded:
                places[word].append(at)
    return {at for found in places.values() if len(found) <= most for at in found}
