"""What previews recall of results of many shapes, against a plain cut with as many tokens, at four sizes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.llm.counting import WordPieceCounter
from reasond_server.tools.previews import render_preview
from reasond_server.tools.results import to_json_text

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = WordPieceCounter().count_text
SIZES = (256, 512, 1_024, 2_048)
URLS = [f"https://shop.example.org/item/{at}" for at in range(50)]
WORDS = "It is a plain sentence about the weather and the sea. "


def make_rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"ROW-{at}", "note": WORDS * 2} for at in range(count)]


def make_log(odd: str) -> tuple[object, list[str]]:
    lines = [f"2026-11-28 10:{at % 60:02d} GET /items/{at} took {at} ms" for at in range(900)]
    lines[611] = odd
    return "\n".join(lines), [odd]


SHAPES: dict[str, Callable[[], tuple[object, list[str]]]] = {
    "a list of one with an inner list": lambda: (
        [{"page": 1, "items": make_rows(60)}],
        [f"ROW-{n}" for n in range(60)],
    ),
    "a few pages of lists": lambda: ([{"items": make_rows(20)}, {"items": []}], [f"ROW-{n}" for n in range(20)]),
    "parts of text": lambda: ([{"type": "text", "text": f"{WORDS * 3}{url}"} for url in URLS], URLS),
    "parts of JSON": lambda: (
        [{"type": "text", "text": json.dumps(row)} for row in make_rows(60)],
        [f"ROW-{at}" for at in range(60)],
    ),
    "Markdown": lambda: ("\n\n".join(f"## Part\n{WORDS * 3}\n[more]({url})" for url in URLS), URLS),
    "a page": lambda: (
        "<html><head><style>p {color: red}</style></head><body>"
        + "".join(f'<div class="card wide"><p>{WORDS}</p><a href="{url}">more</a></div>' for url in URLS),
        URLS,
    ),
    "links": lambda: ("\n".join(f"- [Item]({url}) {WORDS}" for url in URLS), URLS),
    **{
        name: partial(make_log, odd)
        for name, odd in {
            "WARN": "2026-11-28 10:11 WARN the disk is nearly full",
            "segfault": "worker[17]: segfault at 0 ip 00007f",
            "OOM": "Out of memory: Killed process 4711 (worker)",
            "500": '10.0.0.1 "GET /pay HTTP/1.1" 500 12',
            "German": "Der Dienst ist abgestürzt",
            "Chinese": "数据库连接错误",
            "Finnish": "Levy on täynnä ja palvelu pysähtyi",
        }.items()
    },
}


def measure_recall(text: str, wanted: list[str]) -> float:
    words = set(text.replace("|", " ").replace(")", " ").replace("(", " ").replace('"', " ").split())
    return sum(one in text if " " in one else one in words for one in wanted) / len(wanted)


def cut_plainly(text: str, tokens: int) -> str:
    """Return the beginning of a result under the line that says how to read the rest, which a cut needs as well."""
    told = f"[preview of {len(text)} characters; read_tool_result with handle c3 reads the rest]\n"
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if COUNT(told + text[:middle]) <= tokens else (low, middle - 1)
    return told + text[:low]


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_preview_recalls_no_less_than_a_plain_cut(shape: str, tokens: int) -> None:
    value, wanted = SHAPES[shape]()
    text = to_json_text(value)
    shown = render_preview(text, tokens=tokens, count=COUNT, query="", handle="c3").text

    assert COUNT(shown) <= tokens
    ours, plain = measure_recall(shown, wanted), measure_recall(cut_plainly(text, tokens), wanted)
    assert ours >= plain
    assert ours > 0
    if len(wanted) == 1:
        assert ours == 1, "the one line that matters"
