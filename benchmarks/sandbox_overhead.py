"""Measure what the sandbox adds to a trivial candidate: `python -m benchmarks.sandbox_overhead`.

Prints a table and writes results/sandbox_overhead.json beside this file. A candidate opens a workspace of 100 files
with one change, runs `python -c pass` there and removes the workspace. Each is compared with the same command started
plainly with the same priority just before it; the overhead is the difference. Quiet is the difference of the quickest
tenths, which other work on the machine disturbs least. Then one candidate for each processor runs at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import circumstances, new_event_loop, processors
from reasond_server.sandbox.levels import SandboxOptions, find_interpreter, open_sandbox
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxLimits
from reasond_server.types.repairs import SandboxLevel
from reasond_server.types.snapshots import SourceFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.sandbox.levels import OpenedSandbox
    from reasond_server.sandbox.workspaces import SourceTree

RESULTS = Path(__file__).resolve().parent / "results" / "sandbox_overhead.json"
PACKAGES = ("reasond-server",)
CANDIDATES = 100
FILES = 100
GOAL_MS = 40.0
# That of jobs: on a busy machine the plain command would otherwise be compared with one that has to wait.
PRIORITY = 10
MILLI = 1000
LEVELS = (SandboxLevel.BWRAP, SandboxLevel.LANDLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The overhead of one level in milliseconds, that of the plain command, and how many go through side by side."""

    level: str
    candidates: int
    plain_p50_ms: float
    quiet_ms: float
    p50_ms: float
    p99_ms: float
    candidates_per_s_per_core: float

    @property
    def is_met(self) -> bool:
        """Whether half of the candidates are within the goal."""
        return self.p50_ms <= GOAL_MS

    def line(self) -> str:
        """Return the row of the table."""
        figures = f"{self.plain_p50_ms:10.1f} {self.quiet_ms:8.1f} {self.p50_ms:8.1f} {self.p99_ms:8.1f}"
        return f"{self.level:<10}{figures} {self.candidates_per_s_per_core:12.1f}  {'ok' if self.is_met else 'MISSED'}"


class Candidates:
    """Runs trivial candidates in one sandbox."""

    def __init__(self, opened: OpenedSandbox, tree: SourceTree) -> None:
        interpreter, folders = find_interpreter(has_all=os.geteuid() != 0)
        self._argv = (interpreter, "-I", "-S", "-c", "pass")
        self._environment = ExecutionEnvironment(name="benchmark", also_readable=folders)
        self._opened = opened
        self._tree = tree

    async def run_plainly(self) -> float:
        """Return the seconds of the command without a sandbox."""
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", str(PRIORITY)),
            *self._argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        await process.communicate()
        return time.perf_counter() - started

    async def run(self, number: int) -> float:
        """Return the seconds of a candidate in the sandbox, with its workspace."""
        started = time.perf_counter()
        changes = {"file0.py": f"changed = {number}\n".encode()}
        async with self._tree.open_workspace(changes) as folder:
            job = Job(argv=self._argv, folder=folder, environment=self._environment, limits=SandboxLimits())
            outcome = await self._opened.sandbox.run(job)
        if outcome.exit_code:
            raise SystemExit(f"a candidate failed: {outcome}")
        return time.perf_counter() - started


async def measure(level: SandboxLevel, folder: Path) -> Measure:
    """Return the figures of one level."""
    opened = await open_sandbox(SandboxOptions(levels=(level,), folder=folder))
    if opened.sandbox.level is not level:
        raise SystemExit(f"the level {level.value} does not work here: {opened.reason}")
    files = [SourceFile(path=f"file{number}.py", content=b"kept = 1\n") for number in range(FILES)]
    tree = await opened.workspaces.write_tree(files)
    candidates = Candidates(opened, tree)
    await candidates.run(0)
    plain: list[float] = []
    added: list[float] = []
    for number in range(CANDIDATES):
        plain.append(await candidates.run_plainly())
        added.append(await candidates.run(number) - plain[-1])
    rate = await measure_rate(candidates)
    await tree.remove()
    await opened.close()
    return summarise(level, plain=plain, added=added, rate=rate)


async def measure_rate(candidates: Candidates) -> float:
    """Return how many candidates go through in a second for each processor."""
    cores = len(processors()) or os.cpu_count() or 1
    places = asyncio.Semaphore(cores)

    async def run(number: int) -> None:
        async with places:
            await candidates.run(number)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(CANDIDATES):
            group.create_task(run(number))
    return CANDIDATES / (time.perf_counter() - started) / cores


def summarise(level: SandboxLevel, *, plain: Sequence[float], added: Sequence[float], rate: float) -> Measure:
    """Return the figures of one level; `plain` and `added` are in seconds."""
    cuts = statistics.quantiles(added, n=100, method="inclusive")
    return Measure(
        level=level.value,
        candidates=len(added),
        plain_p50_ms=round(statistics.median(plain) * MILLI, 1),
        quiet_ms=round((find_quickest(added, plain) - find_quickest(plain)) * MILLI, 1),
        p50_ms=round(cuts[49] * MILLI, 1),
        p99_ms=round(cuts[98] * MILLI, 1),
        candidates_per_s_per_core=round(rate, 1),
    )


def find_quickest(*parts: Sequence[float]) -> float:
    """Return the tenth part of the sums of `parts`: what it takes when little else runs."""
    sums = [float(sum(each)) for each in zip(*parts, strict=True)]
    return statistics.quantiles(sums, n=10, method="inclusive")[0]


async def measure_all(folder: Path) -> list[Measure]:
    """Return the figures of each level."""
    return [await measure(level, folder) for level in LEVELS]


def main() -> None:
    """Measure, print and write."""
    folder = Path(tempfile.mkdtemp(prefix="reasond-benchmark-"))
    # The users of the jobs of root must go through it.
    folder.chmod(0o711)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            measures = runner.run(measure_all(folder))
    finally:
        shutil.rmtree(folder)
    print(f"goal: p50 within {GOAL_MS:g} ms")
    print(f"{'level':<10}{'plain p50':>10} {'quiet ms':>8} {'p50 ms':>8} {'p99 ms':>8} {'per s, core':>12}")
    for each in measures:
        print(each.line())
    result = {
        "circumstances": circumstances(PACKAGES),
        "goal_ms": GOAL_MS,
        "measures": [asdict(each) for each in measures],
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
