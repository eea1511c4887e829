"""The patch of any change of any texts applies and makes exactly that change.

`ROUND_TRIPS=1000 pytest tests/property/test_patch_round_trips.py` tries more of them.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reasond_server.repair.edits.edit_application import Edit, apply_edits
from reasond_server.repair.edits.patches import make_patch, validate_patch
from reasond_server.types.repairs import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUND_TRIPS = int(os.environ.get("ROUND_TRIPS", "40"))
NAMES = st.sampled_from([
    "a", "b.py", "ä.txt", "日本", "a b", "x y ", 'q"uote', "it's", "-rf", "+", "*", "$x", "{}", "emoji😀", "e\u0301",
    "a" * 200, "@", "#", "%s", "~", "b", ".env", "...x",
]).map(str.strip)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LINES = st.sampled_from([
    "", "x", "y = 1", "\tz", "ä", "diff --git a/x b/x", "--- a/x", "+++ b/x", "@@ -1 +1 @@",
    "\\ No newline at end of file",    "x ", " ", "<<<<<<< SEARCH", "-", "+", "\x0c", "\x85", "\u2028", "\ufeff",
]) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n"), max_size=8)  # fmt: skip
ENDINGS = st.sampled_from(["\n", "\n", "\r\n"])


@st.composite
def draw_text(draw: st.DrawFn) -> bytes:
    ending = draw(ENDINGS)
    text = "".join(
        line + (ending if draw(st.integers(0, 9)) else draw(ENDINGS)) for line in draw(st.lists(LINES, max_size=9))
    )
    return (text if draw(st.booleans()) else text.removesuffix("\n").removesuffix("\r")).encode()


FILES = st.dictionaries(PATHS, st.tuples(draw_text(), st.booleans()), max_size=5)
WRITTEN = st.dictionaries(PATHS, draw_text(), max_size=4)


@pytest.mark.slow
@given(
    files=FILES,
    written=WRITTEN,
    deleted=st.sets(st.integers(0, 4)),
    rewritten=st.dictionaries(st.integers(0, 4), draw_text()),
)
@example(files={"a": (b"x\r\n", True)}, written={"leer": b"", "ä": b"x"}, deleted=set(), rewritten={0: b"x\n"})
@settings(max_examples=ROUND_TRIPS, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_patch_makes_exactly_the_change(
    files: Mapping[str, tuple[bytes, bool]],
    written: Mapping[str, bytes],
    deleted: set[int],
    rewritten: Mapping[int, bytes],
) -> None:
    originals = {
        path: SourceFile(path=path, content=content, is_executable=is_executable)
        for path, (content, is_executable) in files.items()
        if not any(path.startswith(f"{other}/") for other in files)
    }
    wanted: dict[str, bytes | None] = dict(written)
    for number, path in enumerate(originals):
        if number in deleted:
            wanted[path] = None
        elif number in rewritten:
            wanted[path] = rewritten[number]
    changes: dict[str, bytes | None] = {}
    for path, content in wanted.items():
        # A file that is in the way of another one is refused before there is a patch.
        others = {*originals, *changes} - {path}
        if not any(f"{other}/".startswith(f"{path}/") or path.startswith(f"{other}/") for other in others):
            changes[path] = content
    asyncio.run(require_round_trip(originals, changes))


async def require_round_trip(files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> None:
    patch = await make_patch(files, changes)
    is_changed = any(content != (files[path].content if path in files else None) for path, content in changes.items())
    assert bool(patch) == is_changed
    if is_changed:
        assert await validate_patch(files, changes, patch) == ""


@given(
    count=st.integers(1, 9),
    cut=st.tuples(st.integers(0, 8), st.integers(1, 4)),
    new=st.lists(st.sampled_from(["", "x", "  y", "ä\t"]), max_size=3),
    ending=ENDINGS,
    is_ended=st.booleans(),
    mark=st.sampled_from(["", "\ufeff"]),
)
def test_an_edit_changes_its_lines_and_no_others(
    *, count: int, cut: tuple[int, int], new: list[str], ending: str, is_ended: bool, mark: str
) -> None:
    lines = [f"line {number}" for number in range(count)]
    start = min(cut[0], count - 1)
    end = min(start + cut[1], count)
    edit = Edit(
        path="a", anchor="".join(f"{line}\n" for line in lines[start:end]), text="".join(f"{line}\n" for line in new)
    )
    last = ending if is_ended else ""
    files = {"a": SourceFile(path="a", content=(mark + ending.join(lines) + last).encode())}
    wanted = [*lines[:start], *new, *lines[end:]]
    if count == 1 and not is_ended:
        ending = "\n"  # No line of the file shows another one.
    after = apply_edits(files, [edit], protected=lambda _: False)["a"]
    assert after == (mark + ending.join(wanted) + (last if wanted else "")).encode()
