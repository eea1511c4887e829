"""Measure which lines and branches the tests run, and compare with the limits.

`pytest -p scripts.line_coverage` measures, in each worker of pytest-xdist, the modules that are imported from then on;
`python -m scripts.line_coverage` adds up what the workers wrote and fails below a limit. Programs that tests start are
not measured.

SlipCover puts probes into the code and takes them out again once they were met, so that tests take an eighth more
processor time; a trace function took half as much again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest
from slipcover import FileMatcher, ImportManager, Slipcover, merge_coverage

ROOT: Final = Path(__file__).resolve().parent.parent
MEASURED: Final = ("src/reasond_server", "clients/python/src/reasond")
FOLDER: Final = ROOT / ".cache" / "coverage"
MIN_PERCENT: Final = 95.0
FULLY_COVERED: Final = (
    "*/reasond_server/errors/*",
    "*/reasond_server/reasoning/strategy_selection.py",
    "*/reasond_server/access/*",
)
OMITTED: Final = (
    "*/reasond/v1/*",
    "*/storage/migrations/*",  # Alembic runs them under other names; tests/unit/storage compares what they make
    # These run in processes of the sandbox, where nothing is measured; tests/integration/test_sandbox_*.py try them.
    "*/sandbox/probe.py",
    "*/sandbox/shepherd/*",
    # These do nothing without a cluster; tests/temporal tries them on a real one.
    "*/engines/repair_worker.py",
    "*/engines/temporal.py",
    "*/reasond_server/assembly/worker.py",
)
NEVER_RUN: Final = r"^\s*\.\.\.$"

measured = pytest.StashKey[Slipcover]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Measure from before the product is imported; the process that gives tests to others only erases."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not is_worker and early_config.known_args_namespace.numprocesses:
        shutil.rmtree(FOLDER, ignore_errors=True)
        return
    folders = [str(ROOT / folder) for folder in MEASURED]
    found = Slipcover(branch=True, source=folders, omit=list(OMITTED), exclude_also=[NEVER_RUN])
    ImportManager(found, FileMatcher(sources=folders, omit=list(OMITTED))).__enter__()
    early_config.stash[measured] = found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what this process measured; pytest-xdist waits for the worker until this is done."""
    if found := session.config.stash.get(measured, None):
        FOLDER.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        (FOLDER / f"{worker}.json").write_text(json.dumps(found.get_coverage()), encoding="utf-8")


def find_gaps(file: dict[str, Any]) -> list[str]:
    """Return the lines and branches of a file that no test runs, as `12` and `12->15`."""
    lines, branches = file["missing_lines"], file["missing_branches"]
    return [*map(str, lines), *(f"{start}->{end or 'exit'}" for start, end in branches if start not in lines)]


def main() -> int:
    """Print every file with gaps and the sum; return 1 below a limit."""
    paths = sorted(FOLDER.glob("*.json"))
    if not paths:
        print(f"nothing was measured: {FOLDER.relative_to(ROOT)} holds no file; run `make test` first")
        return 1
    total, *others = (json.loads(path.read_text("utf-8")) for path in paths)
    for other in others:
        merge_coverage(total, other)
    gaps = {name: found for name, file in sorted(total["files"].items()) if (found := find_gaps(file))}
    for name, found in gaps.items():
        print(f"{total['files'][name]['summary']['percent_covered']:5.1f} %  {name}  {', '.join(found)}")
    percent = total["summary"]["percent_covered"]
    broken = [f"{name} must be covered fully" for name in gaps if any(fnmatch(name, each) for each in FULLY_COVERED)]
    if percent < MIN_PERCENT:
        broken.append(f"{percent:.1f} % are covered; at least {MIN_PERCENT:g} % must be")
    print(f"{percent:.1f} % of lines and branches are covered", *broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
