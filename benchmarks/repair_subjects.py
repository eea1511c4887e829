"""Functions of the standard library that are fit for cases of repair, and expressions that test them.

In the form of a test, <V> stands for a value, <A>, <B> and <C> for the parts of a value that is a tuple.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Functions of a module of the standard library, and expressions that test them."""

    module: str
    names: tuple[str, ...]
    tests: tuple[str, ...]


def _build_subject(module: str, names: str, *forms: tuple[str, Sequence[object]]) -> Subject:
    """Return a subject with a test for each value of each form."""
    tests = tuple(_write_test(form, value) for form, values in forms for value in values)
    return Subject(module=module, names=tuple(names.split()), tests=tests)


def _write_test(form: str, value: object) -> str:
    if "<V>" in form or not isinstance(value, tuple):
        return form.replace("<V>", repr(value))
    for letter, part in zip("ABC", value, strict=False):
        form = form.replace(f"<{letter}>", repr(part))
    return form


def _draw(lot: random.Random, count: int, most: int) -> list[int]:
    return [lot.randint(0, most) for _ in range(count)]


_LOT: Final = random.Random(16)  # noqa: S311 - a benchmark, no secret
_LISTS: Final = [
    _draw(_LOT, count, most) for count, most in zip(range(14), (9, 3, 9, 5, 4, 20, 9, 3) * 2, strict=False)
]
_SORTED: Final = [(sorted(values), x) for values in _LISTS for x in (0, 3, 5)]
_TEXTS: Final = (
    "", "a", "  a\n  b\n", "\tx\n\t  y\n\n\tz", "a\n b\n", "   \n  deep\n    deeper\n  back\n", " one two  three ",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit", "well-known hyphen-ated words--and dashes",
    "x" * 30 + " yy", "Ends. With a sentence. And more!", "line one\nline two\n\nline four",
)  # fmt: skip
_PATHS: Final = (
    "", "/", "//", "a", "a/b", "/a/b.c", "a/b.tar.gz", ".hidden", "a/.b", "..", "a//b/", "c:/x", "c:\\x\\y",
    "\\\\srv\\s\\p",
    "a.b/c", "...x",
)  # fmt: skip
_COLOURS: Final = [
    (r / 4, g / 4, b / 4) for r, g, b in ((0, 0, 0), (4, 4, 4), (1, 2, 3), (3, 2, 1), (4, 0, 0), (0, 4, 1), (2, 2, 2),
    (0, 1, 4), (3, 0, 3), (4, 1, 0), (1, 1, 3), (2, 4, 0))
]  # fmt: skip
_WORDS: Final = ("bücher", "münchen", "abc", "", "ünïcödé", "日本語", "mañana", "ä", "faß", "aäbößc", "zürich-x", "ελ")
_PARTS: Final = ("", "a", "ab", "a b", "a=b", "é", "a_b-c", "=", "long " * 9, "tab\tx", "x\r\ny", "100%", "a;b", '"q"')
_DAYS: Final = (1, 2, 59, 60, 365, 366, 367, 1461, 36524, 36525, 146097, 146098, 577736, 730120, 738000)
_DATES: Final = ((1, 1, 1), (4, 2, 29), (100, 3, 1), (400, 12, 31), (1600, 2, 29), (1999, 12, 31), (2000, 3, 1),
    (2004, 2, 28), (2023, 7, 4), (2024, 12, 31), (1582, 10, 15), (3, 3, 3))  # fmt: skip
_GRAPHS: Final[tuple[dict[object, object], ...]] = (
    {}, {1: [2]}, {"d": ["b", "c"], "b": ["a"], "c": ["a"]}, {1: [], 2: [1], 3: [1, 2]}, {1: [2], 2: [1]}, {5: [4, 3]},
    {1: [2, 3], 2: [3]}, {1: [1]}, {"a": "bc", "b": "c"}, {1: [2], 3: [4], 5: []},
)  # fmt: skip
_URLS: Final = (
    ("http://a/b/c/d;p?q", "g"), ("http://a/b/c/d;p?q", "../g"), ("http://a/b/c/d", "./g/."), ("http://a/b/c/d", "/g"),
    ("http://a/b/c/d;p?q", "?y"), ("http://a/b/c/d;p?q", "#s"), ("http://a/b/c/d", "//h/x"), ("", "x"), ("x", ""),
    ("http://a/b/c/d;p?q", "../../../g"), ("http://a/b", "mailto:x"), ("file:///a/b", "c"), ("http://a", "b/c"),
)  # fmt: skip
_QUERIES: Final = (
    "",
    "a=1",
    "a=1&b=2",
    "a=&b",
    "a=1&a=2",
    "a%20b=c+d",
    "&&a=1",
    "=x",
    "a=%E4%BD%A0",
    "a==b",
    "x=1;y=2",
)

_ASCII: Final = tuple(part for part in _PARTS if part.isascii())
_PATTERNS: Final = (
    "", "*", "a?b", "[ab]", "[!a-c]x", "[", "[]a]", "**", "*a*b*", "[a-b-c]", "[z-a]", "a[", "[!]x", "[^a]", "x.[ch]",
)  # fmt: skip
_LIST_PAIRS: Final = tuple(zip(_LISTS, _LISTS[3:], strict=False))
_PATH_PAIRS: Final = tuple(pairwise(_PATHS))
_FAR_PATHS: Final = tuple(zip(_PATHS, _PATHS[5:], strict=False))
_TEXT_PAIRS: Final = tuple(pairwise(_TEXTS))
_TEXT_PARTS: Final = tuple(zip(_TEXTS, _PARTS, strict=False))
_MATCHER: Final = "(lambda m: (m.get_matching_blocks(), m.get_opcodes(), m.ratio()))(SequenceMatcher(None, <A>, <B>))"
_HEAP: Final = "(lambda h: ([heappush(h, x) for x in <V>], h[:], [heappop(h) for _ in <V>]))([])"
_SORTER: Final = "(lambda t: (t.prepare(), t.get_ready(), t.is_active()))(TopologicalSorter(<V>))"

SUBJECTS: Final = (
    _build_subject(
        "bisect", "bisect_left", ("bisect_left(<A>, <B>)", _SORTED), ("bisect_left(<A>, <B>, 1, 3)", _SORTED[-8:])
    ),
    _build_subject(
        "bisect",
        "insort_right bisect_right",
        ("(lambda a: (insort_right(a, <B>), a))(<A>)", _SORTED),
        ("bisect_right(<A>, <B>, 1, 4)", _SORTED[-9:]),
    ),
    _build_subject("heapq", "heappush heappop", (_HEAP, _LISTS)),
    _build_subject(
        "heapq",
        "heapify heapreplace heappushpop",
        ("(lambda h: (heapify(h), h))(<V>)", _LISTS),
        ("(lambda h: (heapify(h), heapreplace(h, 2), heappushpop(h, 4), h))(<V>)", _LISTS),
    ),
    _build_subject(
        "heapq",
        "merge",
        ("list(merge(sorted(<A>), sorted(<B>)))", _LIST_PAIRS),
        ("list(merge([5, 2], sorted(<V>)[::-1], reverse=True))", _LISTS[:6]),
    ),
    _build_subject(
        "heapq",
        "nsmallest nlargest",
        ("(nsmallest(3, <V>), nlargest(2, <V>))", _LISTS),
        ("nlargest(4, <V>, key=lambda x: -x)", _LISTS),
    ),
    _build_subject("textwrap", "dedent", ("dedent(<V>)", _TEXTS)),
    _build_subject("textwrap", "indent", ("indent(<V>, '> ')", _TEXTS), ("indent(<V>, '-', str.isspace)", _TEXTS)),
    _build_subject(
        "textwrap",
        "wrap shorten TextWrapper",
        ("wrap(<V>, 12)", _TEXTS),
        ("wrap(<V>, 9, initial_indent='* ', subsequent_indent='  ', max_lines=3)", _TEXTS),
        ("shorten(<V>, 15)", _TEXTS),
    ),
    _build_subject(
        "statistics", "median median_low median_high", ("(median(<V>), median_low(<V>), median_high(<V>))", _LISTS)
    ),
    _build_subject("statistics", "median_grouped", ("median_grouped(<V>)", _LISTS), ("median_grouped(<V>, 2)", _LISTS)),
    _build_subject(
        "statistics", "quantiles", ("quantiles(<V>)", _LISTS), ("quantiles(<V>, n=5, method='inclusive')", _LISTS)
    ),
    _build_subject("string", "capwords", ("capwords(<V>)", _TEXTS), ("capwords(<V>, 'o')", _TEXTS)),
    _build_subject(
        "posixpath",
        "commonpath",
        ("commonpath([<A>, <B>])", _PATH_PAIRS),
        ("commonpath([<V> + '/x', <V> + '/y/z'])", _PATHS),
    ),
    _build_subject(
        "genericpath",
        "_splitext commonprefix",
        ("_splitext(<V>, '/', None, '.')", _PATHS),
        ("commonprefix([<A>, <B>])", _PATH_PAIRS),
    ),
    _build_subject("ntpath", "join splitdrive", ("join(<A>, <B>)", _FAR_PATHS), ("splitdrive(<V>)", _PATHS)),
    _build_subject(
        "calendar",
        "monthrange leapdays isleap",
        ("monthrange(<A>, <B>)", _DATES),
        ("(leapdays(<A>, 2025), isleap(<A>))", _DATES),
    ),
    _build_subject(
        "colorsys",
        "rgb_to_hls hls_to_rgb",
        ("rgb_to_hls(<A>, <B>, <C>)", _COLOURS),
        ("hls_to_rgb(<A>, <B>, <C>)", _COLOURS),
    ),
    _build_subject(
        "colorsys",
        "rgb_to_hsv hsv_to_rgb",
        ("rgb_to_hsv(<A>, <B>, <C>)", _COLOURS),
        ("hsv_to_rgb(<A>, <B>, <C>)", _COLOURS),
    ),
    _build_subject(
        "encodings.punycode",
        "punycode_encode punycode_decode",
        ("punycode_encode(<V>)", _WORDS),
        ("punycode_decode(<V>.encode('punycode'), 'strict')", _WORDS),
    ),
    _build_subject("datetime", "_ord2ymd _ymd2ord", ("_ord2ymd(<V>)", _DAYS), ("_ymd2ord(<A>, <B>, <C>)", _DATES)),
    _build_subject(
        "base64",
        "b85encode b85decode",
        ("b85encode(<V>.encode())", _PARTS),
        ("b85decode(__import__('base64').b85encode(<V>.encode()))", _PARTS),
    ),
    _build_subject(
        "base64",
        "a85encode a85decode",
        ("a85encode(<V>.encode(), wrapcol=9)", _PARTS),
        ("a85decode(__import__('base64').a85encode(<V>.encode()))", _PARTS),
    ),
    _build_subject("fnmatch", "translate", ("translate(<V>)", _PATTERNS)),
    _build_subject("urllib.parse", "urljoin", ("urljoin(<A>, <B>)", _URLS)),
    _build_subject(
        "urllib.parse",
        "parse_qsl",
        ("parse_qsl(<V>)", _QUERIES),
        ("parse_qsl(<V>, keep_blank_values=True)", _QUERIES),
    ),
    _build_subject(
        "graphlib",
        "TopologicalSorter",
        ("list(TopologicalSorter(<V>).static_order())", _GRAPHS),
        (_SORTER, _GRAPHS),
    ),
    _build_subject(
        "email.quoprimime",
        "header_encode body_encode decode",
        ("header_encode(<V>.encode())", _PARTS),
        ("body_encode(<V>, 20)", _ASCII),
        ("decode(<V>)", _PARTS),
    ),
    _build_subject("http.cookies", "_quote _unquote", ("(_quote(<V>), _unquote(_quote(<V>)))", _PARTS)),
    _build_subject("inspect", "cleandoc", ("cleandoc(<V>)", _TEXTS)),
    _build_subject(
        "difflib",
        "SequenceMatcher",
        (_MATCHER, _TEXT_PARTS),
        ("SequenceMatcher(str.isspace, <A>, <B>).find_longest_match()", _TEXT_PAIRS),
    ),
)
"""Whose functions the cases are made of."""
