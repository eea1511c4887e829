"""Run the checks of the project, stage by stage, and print the total of all tests at the end.

`make test` runs all stages; `make check` is `--fast`, which skips the slow ones: real programs, snippets, wheels and
coverage. The stages of a lane run in order, and the lanes side by side. A failed stage does not stop the later ones.
`--only WORD` runs the stages whose name contains the word.

A few failed tests of a stage run again, one after the other: of real servers that share two processors with hundreds
of other tests, one may be too late. A test that fails again has failed; one that passes is named in a note.

SIGTERM, SIGINT and SIGHUP end the stages with everything that they started.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from scripts.stages import Command, Lane, Stage, preparation, static_stages, working_lanes

ROOT = Path(__file__).resolve().parent.parent
TAIL_LINES = 80
MOST_REPEATED = 5
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - the files are in a folder of their own
LEAST_FREE_BYTES = 4 << 30
# For a test run to end its servers and to remove its files.
GRACE_S = 10.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# With PYTHONDONTWRITEBYTECODE each of a thousand processes would compile every module that it imports.
FOREIGN_SETTINGS = ("REASOND", "OPENAI_", "PYTHONDONTWRITEBYTECODE")
CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s\b", re.MULTILINE)
COUNT = re.compile(r"(\d+) ([a-z]+)")
BAD = {"failed", "error", "errors", "xpassed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of tests by outcome; can be added."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            passed=self.passed + other.passed,
            failed=self.failed + other.failed,
            skipped=self.skipped + other.skipped,
        )

    def line(self) -> str:
        """Return the counts in pytest's words; skipped tests are named only if there are any."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count_tests(output: str, *, is_passed: bool) -> Counts:
    """Return the sum of the counts in all summary lines of `output`.

    A run that failed without a failed test (collection failed, or the run was stopped) counts as one failed test.
    """
    total = Counts()
    for closing in CLOSING.findall(output):
        ended = {word: int(number) for number, word in COUNT.findall(closing)}
        total += Counts(
            passed=ended.get("passed", 0) + ended.get("xfailed", 0),
            failed=sum(number for word, number in ended.items() if word in BAD),
            skipped=ended.get("skipped", 0),
        )
    return total if is_passed or total.failed else total + Counts(failed=1)


def failed_tests(output: str) -> list[str]:
    """Return the ids of the failed tests in pytest's summary, each once."""
    return list(dict.fromkeys(line.partition(" ")[2].partition(" - ")[0] for line in failures(output)))


def notices(output: str) -> list[str]:
    """Return the lines to show even after success: skipped tests and notes of stages."""
    return [line for line in output.splitlines() if line.startswith(("SKIPPED", "note:"))]


def failures(output: str) -> list[str]:
    """Return the lines of pytest's summary that name a failed test and the reason."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a stage: seconds, whether all its commands succeeded, and their output."""

    stage: Stage
    seconds: float
    is_passed: bool
    output: str
    counts: Counts = field(default_factory=Counts)

    def line(self) -> str:
        """Return the row of the table."""
        return f"{'ok  ' if self.is_passed else 'FAIL'} {self.seconds:7.1f} s  {self.stage.name}"


def environment() -> dict[str, str]:
    """Return the environment of a stage: the project's programs first on PATH, no settings of the developer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_SETTINGS)}
    folders = (Path(sys.executable).parent, ROOT / ".cache" / "bin")
    kept["PATH"] = os.pathsep.join([*map(str, folders), kept.get("PATH", os.defpath)])
    return kept


@contextmanager
def keep_temporary_files_in_memory(
    place: Path = MEMORY_FOLDER, *, least_free: int = LEAST_FREE_BYTES
) -> Iterator[None]:
    """Let stages make temporary files in a folder of `place`, if programs may run there and enough of it is free.

    To make 2,000 files took 0.3 to 1.0 s of a processor on the ext4 of a machine for builds, and 0.05 s in memory. The
    folder is removed at the end. Like /tmp it is for all users.
    """
    found = os.statvfs(place) if place.is_dir() and os.access(place, os.W_OK) else None
    if found is None or found.f_flag & os.ST_NOEXEC or found.f_bavail * found.f_frsize < least_free:
        yield
        return
    # A short name: below it are sockets, whose paths have at most 107 bytes.
    folder, before = tempfile.mkdtemp(prefix="t", dir=place), os.environ.get("TMPDIR")
    Path(folder).chmod(0o1777)
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


async def run_command(command: tuple[str, ...], log: IO[bytes], *, limit_s: float) -> bool:
    """Run `command`, write its output into `log`, and return whether it exited with 0 within `limit_s` seconds.

    The command gets its own process group, so that everything it starts ends when the limit is reached, or when the
    caller is cancelled.
    """
    log.write(f"$ {' '.join(command)}\n".encode())
    log.flush()
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            return await process.wait() == 0
    except TimeoutError:
        log.write(f"\nstopped: not done after {limit_s:g} s\n".encode())
        return False
    finally:
        if process.returncode is None:
            await end_group(process)


async def end_group(process: asyncio.subprocess.Process) -> None:
    """End the process group of `process`: ask it to, and kill what is left after GRACE_S seconds."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.wait()
    finally:
        # The first process may have ended before those that it started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def run(stage: Stage) -> Outcome:
    """Run the commands of `stage` until one fails, and a few failed tests again."""
    result = await run_commands(stage, stage.commands)
    failed = failed_tests(result.output) if stage.repeat and not result.is_passed else []
    if not 0 < len(failed) == result.counts.failed <= MOST_REPEATED:
        return result
    again = await run_commands(stage, [(*stage.repeat, *failed)])
    still = failed_tests(again.output)
    notes = [
        f"note: failed beside others and passed alone: {line}"
        for line in failures(result.output)
        if not any(test in line for test in still)
    ]
    return replace(
        again,
        seconds=result.seconds + again.seconds,
        output="\n".join([result.output, again.output, *(notes if again.counts.failed == len(still) else [])]),
        counts=replace(result.counts, failed=0) + again.counts,
    )


async def run_commands(stage: Stage, commands: Sequence[Command]) -> Outcome:
    """Run `commands` of a stage until one fails."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        is_passed = True
        for command in commands:
            is_passed = is_passed and await run_command(command, log, limit_s=stage.limit_s)
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    seconds = time.monotonic() - started
    counts = count_tests(output, is_passed=is_passed) if stage.is_pytest else Counts()
    return Outcome(stage=stage, seconds=seconds, is_passed=is_passed, output=output, counts=counts)


async def run_lane(lane: Lane) -> list[Outcome]:
    """Run the stages of `lane` one after the other and print each outcome as soon as the stage ends."""
    results = []
    for stage in lane:
        results.append(await run(stage))
        show_output(results[-1])
    return results


async def run_lanes(beside: Lane, first: Lane, lanes: list[Lane]) -> list[Outcome]:
    """Run `beside` from the beginning, and after `first` the `lanes`; return all outcomes, lane by lane."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_lane(beside))]
        prepared = await run_lane(first)
        tasks += [group.create_task(run_lane(lane)) for lane in lanes]
    return [*prepared, *(result for task in tasks for result in task.result())]


async def run_until_signal(beside: Lane, first: Lane, lanes: list[Lane]) -> list[Outcome]:
    """Run the lanes; a signal that ends programs cancels them and raises CancelledError."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    return await run_lanes(beside, first, lanes)


def check_lanes(beside: Lane, first: Lane, lanes: list[Lane]) -> int:
    """Run the lanes, print what came of them, and return the exit code."""
    started = time.monotonic()
    try:
        with keep_temporary_files_in_memory():
            results = asyncio.run(run_until_signal(beside, first, lanes))
    except asyncio.CancelledError:
        print("stopped by a signal; the stages are ended", flush=True)
        return 1
    return conclude(results, seconds=time.monotonic() - started)


def show_output(result: Outcome) -> None:
    """Print the row of `result`, the names of skipped or failed tests, and the last output of a failed stage."""
    print(result.line(), flush=True)
    if not result.is_passed:
        lines = [*failures(result.output), *result.output.splitlines()[-TAIL_LINES:]]
        print("\n".join(f"    | {line}" for line in lines), flush=True)
    else:
        print("".join(f"    {line}\n" for line in notices(result.output)), end="", flush=True)


def conclude(results: list[Outcome], *, seconds: float) -> int:
    """Print the table and, last, the sum of all tests; return the exit code."""
    failed = [result.stage.name for result in results if not result.is_passed]
    print(f"\n{len(results)} stages in {seconds:.1f} s, some of them side by side")
    print("\n".join(result.line() for result in results))
    if failed:
        print(f"failed: {', '.join(failed)}")
    print(sum((result.counts for result in results), Counts()).line())
    return 1 if failed else 0


def main() -> int:
    """Run the stages that the arguments choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="leave the slow stages out")
    parser.add_argument("--only", metavar="WORD", default="", help="run only stages whose name holds WORD")
    options = parser.parse_args()
    fast = options.fast
    beside, first, *lanes = (
        [stage for stage in lane if options.only in stage.name]
        for lane in (static_stages(ROOT), preparation(fast=fast), *working_lanes(ROOT, fast=fast))
    )
    if not any((beside, first, *lanes)):
        parser.error(f"no stage has {options.only!r} in its name")
    return check_lanes(beside, first, lanes)


if __name__ == "__main__":
    sys.exit(main())
