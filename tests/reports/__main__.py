"""Feeds the corpus to a running server, and prints what was tried, right and wrong by kind.

python -m tests.reports [--type T] [--kind WORDS] [--verbose]
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter, defaultdict

from tests.reports.rows import TYPES, load_rows
from tests.reports.site import running_site
from tests.reports.trials import try_row


def main() -> int:
    """Run the rows that the arguments choose; return 1 if a row is wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.reports")
    parser.add_argument("--type", choices=TYPES, default="")
    parser.add_argument("--kind", default="", help="only kinds that hold these words")
    parser.add_argument("--verbose", action="store_true", help="also print what is wrong with each row")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows = [row for row in load_rows(chosen.type) if chosen.kind in row.kind]
    tried: Counter[tuple[str, str]] = Counter((row.type, row.kind) for row in rows)
    wrong: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    with running_site() as runner:
        for row in rows:
            faults = runner.run(try_row(runner.site, row))
            if faults:
                wrong[row.type, row.kind].append(row.id)
                if chosen.verbose:
                    print(f"{row.id}: {'; '.join(faults)}")  # noqa: T201 - a program that prints
    print(f"{'type':<10} {'tried':>5} {'right':>5} {'wrong':>5}  kind")  # noqa: T201 - as above
    for (kind_type, kind), count in tried.items():
        ids = wrong[kind_type, kind]
        print(f"{kind_type:<10} {count:>5} {count - len(ids):>5} {len(ids):>5}  {kind}  {' '.join(ids)}")  # noqa: T201 - as above
    failed = sum(map(len, wrong.values()))
    print(f"{'all':<10} {len(rows):>5} {len(rows) - failed:>5} {failed:>5}")  # noqa: T201 - as above
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
