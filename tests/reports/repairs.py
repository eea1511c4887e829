"""Trials of replies that repair a small project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond import repair_task
from reasond.v1.repairs_pb2 import Check, ResultFormat
from tests.reports.model_server import MARK, say_text

if TYPE_CHECKING:
    from tests.reports.rows import Row
    from tests.reports.site import Site

FILES: Final = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef name():\n    return 'calc'\n",
    "check.py": "from calc import add\n\nassert add(2, 3) == 5, add(2, 3)\n",
}
"""A project whose check fails, with a function that no repair may lose."""


async def try_repair(site: Site, row: Row) -> list[str]:
    """Let a reply repair the project; `accepted` is True, False, or null where only the rest must be kept."""
    files = {**FILES, **row.input.get("files", {})}
    says = [say_text(text) for text in row.input.get("says", [row.input.get("text", "")])]
    site.models.begin(row.id, says)
    check = Check(name="script", argv=["python", "check.py"], format=ResultFormat.RESULT_FORMAT_EXIT_CODE)
    task = repair_task(
        f"{MARK.format(row=row.id)} The sum is wrong.",
        files=files,
        environment="python",
        checks=[check],
        config={"max_candidates": 1} | row.input.get("config", {}),
    )
    done = await site.client.repair(task)
    faults = []
    wanted = row.right.get("accepted")
    if wanted is not None and done.is_accepted != wanted:
        faults.append(f"accepted: {done.is_accepted}; {done.patch!r}; {list(done.warnings)}")
    lost = [line for line in done.patch.split("\n") if line.startswith("-    return 'calc'") or line == "-def name():"]
    if lost and done.is_accepted:
        faults.append(f"it lost {lost}")
    return faults
