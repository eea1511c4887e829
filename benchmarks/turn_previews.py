"""Measure what a planner still sees of a large result by the size of its preview, and how long rendering holds others.

A list of 1,000 objects (506 kB) is shown as a preview of 256 to 16,384 tokens, as seed 002 shows it (3 items, 300
characters of a text), and cut off at as many tokens. Recall is the share of what is in the preview letter for letter:
identifiers, rows with a failure (identifier and error) and rows that the question names (identifier and title).
The other figure is the longest time in which an event loop does not run while a thread renders 2 MB, by the shape of
the result: the least of the rounds, because other processes delay the loop too.

The tokenizer is o200k_base, which must be local (`reasond tokenizer fetch o200k_base`); --ranks is its folder. Prints
tables, writes results/turn_previews.json and the tables of docs/guides/previews.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.machine import circumstances, new_event_loop
from benchmarks.pages import put_between
from reasond_server.llm.counting.tokenizers import TiktokenCounter, find_local_encoding
from reasond_server.tools.previews import render_preview
from reasond_server.tools.results import to_json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "turn_previews.json"
PAGE = ROOT / "docs" / "guides" / "previews.md"
SIZES: Final = (256, 512, 1_024, 2_048, 3_072, 4_096, 5_120, 6_144, 8_192, 16_384)
ROWS: Final = 1_000
LOOK_S: Final = 0.0005
PREVIEW_TOKENS: Final = 1_024
WORDS: Final = ("disk", "full", "retry", "node", "cluster", "packet", "stream", "queue", "worker", "shard", "lease")
EVERY: Final = 50
ASKED: Final = (123, 456, 789)
IDENTIFIERS: Final[Mapping[str, Callable[[random.Random, int], Any]]] = {
    "ISS-100123": lambda _, at: f"ISS-{100_000 + at}",
    "100123": lambda _, at: 100_000 + at,
    "9f3c21ab": lambda chance, _: f"{chance.getrandbits(32):08x}",
    "UUID": lambda chance, _: "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}".format(
        *(chance.getrandbits(bits) for bits in (32, 16, 12, 12, 48))
    ),
}


def make_rows(form: str, *, count: int = ROWS) -> list[dict[str, Any]]:
    """Return objects of about 500 bytes; 2 in 100 failed."""
    chance = random.Random(7)  # noqa: S311 - the same rows in every run

    def words(number: int) -> str:
        return " ".join(chance.choices(WORDS, k=number))

    rows = []
    for at in range(count):
        has_failed = at % EVERY == 0
        key = IDENTIFIERS[form](chance, at)
        rows.append(
            {
                "id": key,
                "status": "failed" if has_failed else chance.choice(["open", "closed", "closed"]),
                "kind": "issue",
                "owner": chance.choice(["ann", "bob", "eve"]),
                "title": words(6),
                "error": f"E{at}: lost {words(2)}" if has_failed else None,
                "updated": f"2026-03-{at % 28 + 1:02d}T10:{at % 60:02d}:00Z",
                "body": words(55),
            }
        )
    return rows


def show_as_the_seed(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Return what seed 002 shows: 3 items of a list and 300 characters of a text."""

    def cut(one: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(one, list):
            return [*map(cut, one[:3]), *([f"[... {len(one) - 3} more items]"] if len(one) > 3 else [])]  # noqa: PLR2004 - as the seed has it
        if isinstance(one, dict):
            return {key: cut(each) for key, each in one.items()}
        return one[:300] + "[truncated...]" if isinstance(one, str) and len(one) > 300 else one  # noqa: PLR2004 - likewise

    return json.dumps(cut(value), indent=2)


def measure_recall(rows: Sequence[Mapping[str, Any]], text: str) -> dict[str, float | bool]:
    """Return shares from 0 to 1 of what `text` has of `rows`, and whether it has the count, columns and statuses."""
    names = [str(row["id"]) for row in rows]
    failed = [row for row in rows if row["error"]]
    statuses = Counter(row["status"] for row in rows)
    asked = [rows[at] for at in ASKED]
    return {
        "identifiers": sum(name in text for name in names) / len(names),
        "failures": sum(str(row["id"]) in text and row["error"] in text for row in failed) / len(failed),
        "asked": sum(str(row["id"]) in text and row["title"] in text for row in asked) / len(asked),
        "has_count": f"{len(rows)} rows" in text or f"{len(rows) - 3} more items" in text,
        "has_columns": all(name in text for name in rows[0]),
        "has_statuses": all(f"{status} {count}" in text for status, count in statuses.items()),
    }


def measure_previews(counter: TiktokenCounter) -> list[dict[str, Any]]:
    """Return a line for each form of identifier and each way to show the rows."""
    lines: list[dict[str, Any]] = []
    for form in IDENTIFIERS:
        rows = make_rows(form)
        text = to_json_text(rows)
        query = "What is wrong with " + ", ".join(str(rows[at]["id"]) for at in ASKED) + "?"
        shown = {f"3 of {len(rows):,} items": show_as_the_seed(rows)}
        for tokens in SIZES:
            made = render_preview(text, tokens=tokens, count=counter.count_text, query=query, handle="c3").text
            shown[f"preview of {tokens}"] = made
            shown[f"first {tokens} tokens"] = counter.head(text, tokens)
        for way, each in shown.items():
            lines.append({"form": form, "way": way, "tokens": counter.count_text(each), **measure_recall(rows, each)})
    return lines


def make_shapes() -> Mapping[str, str]:
    """Return results of 2 MB, by their shape."""
    chance = random.Random(7)  # noqa: S311 - the same texts in every run
    rows = make_rows("ISS-100123", count=4_100)
    line = " ".join(chance.choices(WORDS, k=330_000))
    return {
        "list of 4,100 objects": to_json_text(rows),
        "the same in an object in a string": to_json_text(to_json_text({"items": rows})),
        "log of 27,000 lines": to_json_text("\n".join(line[at : at + 73] for at in range(0, 73 * 27_000, 73))),
        "text of one line": to_json_text(line),
        "list of 100,000 numbers": to_json_text([chance.random() for _ in range(100_000)]),
        "object of 140,000 fields": to_json_text({f"k{at}": at for at in range(140_000)}),
    }


async def find_longest_hold(work: Callable[[], object]) -> tuple[float, float]:
    """Return the longest time between two turns of the event loop while `work` is done in a thread, and its time."""
    task = asyncio.create_task(asyncio.to_thread(work))
    began = last = time.perf_counter()
    longest = 0.0
    while not task.done():
        await asyncio.sleep(LOOK_S)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    await task
    return longest, time.perf_counter() - began


async def measure_holds(counter: TiktokenCounter, rounds: int) -> list[dict[str, Any]]:
    """Return for each shape the least of the longest holds of `rounds` rounds, in milliseconds."""
    lines = []
    for shape, text in make_shapes().items():
        work = partial(
            render_preview, text, tokens=PREVIEW_TOKENS, count=counter.count_text, query="node 77", handle="c3"
        )
        found = [await find_longest_hold(work) for _ in range(rounds)]
        lines.append(
            {
                "shape": shape,
                "bytes": len(text.encode()),
                "longest_hold_ms": round(1_000 * min(hold for hold, _ in found), 1),
                "total_ms": round(1_000 * min(total for _, total in found)),
            }
        )
    return lines


def write_tables(recall: Sequence[Mapping[str, Any]], holds: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page."""
    forms = list(IDENTIFIERS)
    lines = [
        "| shown as | tokens | count, columns, statuses | failures | rows asked for | identifiers like "
        + " | ".join(forms)
        + " |",
        "| --- " * (5 + len(forms)) + "|",
    ]
    first = [one for one in recall if one["form"] == forms[0]]
    for place, one in enumerate(first):
        same = [line for line in recall if line["form"] != forms[0]][place :: len(first)]
        marks = "yes" if one["has_count"] and one["has_columns"] and one["has_statuses"] else "no"
        shares = [f"{line['identifiers']:.0%}" for line in (one, *same)]
        cells = [one["way"], f"{one['tokens']:,}", marks, f"{one['failures']:.0%}", f"{one['asked']:.0%}", *shares]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| 2 MB as | longest hold, ms | whole, ms |", "| --- | --- | --- |"]
    lines += [f"| {one['shape']} | {one['longest_hold_ms']} | {one['total_ms']:,} |" for one in holds]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=Path, required=True, help="folder with the file of o200k_base")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    encoding = find_local_encoding("o200k_base", [options.ranks])
    if encoding is None:
        raise SystemExit(f"{options.ranks} has no o200k_base; run `reasond tokenizer fetch o200k_base`")
    counter = TiktokenCounter(encoding)
    recall = measure_previews(counter)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        holds = runner.run(measure_holds(counter, options.rounds))
    table = write_tables(recall, holds)
    print(table)
    told = {
        "circumstances": circumstances(["reasond-server", "tiktoken"]),
        "tokenizer": "o200k_base",
        "recall": recall,
        "holds": holds,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    put_between(PAGE, "<!-- previews -->", "<!-- end of previews -->", table)


if __name__ == "__main__":
    main()
