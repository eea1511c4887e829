"""Run simulations by hand: `python -m tests.simulation --seeds 0:10000`; a failed seed can be repeated."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from tests.simulation.simulation import Report, Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOLD = 20


def simulate(seed: int) -> Report:
    """Run the simulation of one seed."""
    return Simulation(seed).run()


def command_for(seed: int) -> str:
    """Return the command that repeats a seed."""
    return f"python -m tests.simulation --seeds {seed}:{seed + 1}"


def story_of(report: Report) -> str:
    """Return the violations of a simulation and the command that repeats it."""
    lines = "\n".join(f"  {violation}" for violation in report.violations[:5])
    return f"seed {report.seed} failed:\n{lines}\n  repeat with: {command_for(report.seed)}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds, print the failed ones and the totals; return 1 if a seed failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="first:end, such as 0:10000")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes to use")
    parser.add_argument("--tell", action="store_true", help="print everything that happens in the first of the seeds")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first seed that fails")
    given = parser.parse_args(arguments)
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    if given.tell:
        _say(story_of(Simulation(seeds.start, tells=_say).run()))
        return 0
    begun, happened, failed, passed_s = time.monotonic(), Counter[str](), 0, 0.0
    with ProcessPoolExecutor(max_workers=given.workers) as pool:
        reports = map(simulate, seeds) if given.workers == 1 else pool.map(simulate, seeds, chunksize=8)
        for report in reports:
            happened += report.happened
            passed_s += report.passed_s
            failed += bool(report.violations)
            if report.violations and failed <= _TOLD:
                _say(story_of(report))
            if report.violations and given.until_failure:
                return 1
    took_s = time.monotonic() - begun
    _say(
        f"{len(seeds)} seeds ({seeds.start}:{seeds.stop}), {failed} failed, {passed_s / 3600:.1f} simulated hours in "
        f"{took_s:.0f} s"
    )
    _say(", ".join(f"{count} {what}" for what, count in happened.most_common()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
