"""Programs of models in the real sandbox, at both levels, hostile ones included, and their records."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.reasoning.run_tools import JournaledPrograms, SandboxPrograms
from reasond_server.runs.effects import Effects
from reasond_server.runs.run_journal import RunJournal
from reasond_server.sandbox.levels import UnavailableSandbox
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.testing import FunctionPrograms
from reasond_server.tools.programs import MAX_OUTPUT_BYTES, ProgramResult
from reasond_server.types.repairs import SandboxLevel
from tests.sandboxing import ENVIRONMENT, LEVELS, LIMITS, find_survivors, running_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.eventlog.store import Record
    from reasond_server.sandbox.levels import OpenedSandbox
    from reasond_server.sandbox.sandbox import SandboxLimits

LONG_S = 60.0


class Memory:
    """Keeps records."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def wait_for_room(self) -> None:
        await asyncio.sleep(0)

    async def flush(self) -> None:
        await asyncio.sleep(0)

    def effects(self, records: Sequence[Record] = ()) -> tuple[Effects, RunJournal]:
        journal = RunJournal(records=list(records), write=self.records.append, sink=self)
        return Effects(nonce="n" * 28, tenant="acme", journal=journal), journal


FORKS = """
import os
made = 0
try:
    for _ in range(10_000):
        if os.fork() == 0:
            import time
            time.sleep(1_000)
        made += 1
except OSError:
    pass
print("refused" if made < 10_000 else made)
"""


@asynccontextmanager
async def running_programs(
    level: SandboxLevel, limits: SandboxLimits = LIMITS, observer: Observer = UNOBSERVED
) -> AsyncGenerator[tuple[SandboxPrograms, OpenedSandbox], None]:
    async with running_sandbox(level) as opened:
        programs = SandboxPrograms(
            sandbox=opened.sandbox,
            workspaces=opened.workspaces,
            environment=replace(ENVIRONMENT, limits=limits),
            permits=asyncio.Semaphore(2),
            observer=observer,
        )
        yield programs, opened


@pytest.mark.parametrize("level", LEVELS)
async def test_a_program_prints_its_answer_and_reads_the_material(level: SandboxLevel) -> None:
    async with running_programs(level) as (programs, _):
        plain = await programs.run("print(6 * 7)", most_s=LONG_S)
        source = "text = open('material.txt', encoding='utf-8').read()\nprint(text.count('\u00e9'), '\u2713')"
        read = await programs.run(source, material="\u00e9t\u00e9", most_s=LONG_S)
        given = await programs.run(
            "print(open('answer.txt', encoding='utf-8').read())", answer="\u00fc 42", most_s=LONG_S
        )
        # What the interpreter warns of must not stand in the answer.
        warned = await programs.run("print(len('\\d'))", most_s=LONG_S)
    assert (plain.output, plain.exit_code, plain.exceeded, plain.is_output_cut) == ("42\n", 0, "", False)
    assert read.output == "2 \u2713\n"
    assert warned.output == "2\n"
    assert given.output == "\u00fc 42\n"


@pytest.mark.parametrize("level", LEVELS)
async def test_an_error_of_a_program_is_its_output(level: SandboxLevel) -> None:
    async with running_programs(level) as (programs, _):
        failed = await programs.run("print(1)\nprint(1 / 0)", most_s=LONG_S)
        broken = await programs.run("print(", most_s=LONG_S)
        surrogate = await programs.run("print('\ud83d')", most_s=LONG_S)
    assert failed.exit_code == 1
    assert "ZeroDivisionError" in failed.output
    assert "SyntaxError" in broken.output
    assert surrogate.output == "?\n"


@pytest.mark.parametrize("level", LEVELS)
async def test_an_endless_program_is_ended_at_its_limit(level: SandboxLevel) -> None:
    async with running_programs(level) as (programs, opened):
        spun = await programs.run("while True: pass", most_s=0.3)
        slept = await programs.run("import time\nprint('so far', flush=True)\ntime.sleep(1_000)", most_s=6.0)
        assert not list(find_survivors(opened))
    assert spun.exceeded in {"more time than its limit", "more processor time than its limit"}
    assert (slept.exceeded, slept.output) == ("more time than its limit", "so far\n")


@pytest.mark.parametrize("level", LEVELS)
async def test_a_fork_bomb_is_held_and_leaves_no_process(level: SandboxLevel) -> None:
    limits = replace(LIMITS, processes=32)
    async with running_programs(level, limits) as (programs, opened):
        ended = await programs.run(FORKS, most_s=LONG_S)
        assert not list(find_survivors(opened))
    assert "refused" in ended.output or ended.exceeded == "more processes than its limit"


@pytest.mark.parametrize("level", LEVELS)
async def test_of_64_megabytes_of_output_a_bounded_part_is_kept(level: SandboxLevel) -> None:
    source = "import sys\nfor _ in range(64):\n    sys.stdout.write('x' * 1024 * 1024)\nprint('the end')"
    async with running_programs(level) as (programs, _):
        ended = await programs.run(source, most_s=LONG_S)
    assert ended.is_output_cut
    assert len(ended.output) <= MAX_OUTPUT_BYTES + 200
    assert ended.output.endswith("the end\n")


@pytest.mark.parametrize("level", LEVELS)
async def test_memory_is_bounded(level: SandboxLevel) -> None:
    limits = replace(LIMITS, memory_bytes=128 * 1024 * 1024)
    async with running_programs(level, limits) as (programs, _):
        ended = await programs.run(
            "b = bytearray(2 ** 30)\nfor i in range(0, 2 ** 30, 4096): b[i] = 1\nprint(1)", most_s=60
        )
    assert ended.exceeded == "more memory than its limit" or "MemoryError" in ended.output


@pytest.mark.parametrize("level", LEVELS)
async def test_there_is_no_network_and_nothing_of_the_server(level: SandboxLevel) -> None:
    source = f"""
import os, socket
try:
    socket.create_connection(("127.0.0.1", 1), timeout=5)
except OSError as error:
    print("refused" if not isinstance(error, ConnectionRefusedError) else "asked")
for path in ("/proc/{os.getpid()}/environ", "/root/.bashrc", "/etc/shadow"):
    try:
        open(path).read()
        print("read", path)
    except OSError:
        print("closed")
print(sorted(os.environ.keys() & {{"HOME_SECRET", "OPENAI_API_KEY"}}))
"""
    os.environ["HOME_SECRET"] = "s"
    try:
        async with running_programs(level) as (programs, _):
            ended = await programs.run(source, most_s=LONG_S)
    finally:
        del os.environ["HOME_SECRET"]
    assert ended.output.splitlines()[1:] == ["closed", "closed", "closed", "[]"]
    assert ended.output.startswith("refused" if level is SandboxLevel.LANDLOCK else ("refused", "asked"))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_run_that_is_cancelled_leaves_no_process(level: SandboxLevel) -> None:
    async with running_programs(level) as (programs, opened):
        task = asyncio.create_task(programs.run("import time\ntime.sleep(1_000)", most_s=LONG_S))
        for _ in range(3_000):
            await asyncio.sleep(0.01)
            if list(find_survivors(opened)):
                break
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not list(find_survivors(opened))


class Counting(Observer):
    """Keeps how programs ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool]] = []

    def program_ended(self, outcome: str, duration_s: float) -> None:
        self.ended.append((outcome, duration_s > 0))


async def test_how_each_program_ended_is_observed() -> None:
    observer = Counting()
    async with running_programs(LEVELS[0], observer=observer) as (programs, _):
        for source, most_s in (("print(1)", LONG_S), ("raise SystemExit(3)", LONG_S), ("while True: pass", 0.3)):
            await programs.run(source, most_s=most_s)
    assert observer.ended == [("ok", True), ("failed", True), ("limited", True)]


async def test_a_sandbox_that_fails_says_nothing_about_the_program() -> None:
    observer = Counting()
    async with running_sandbox(SandboxLevel.LANDLOCK) as opened:
        programs = SandboxPrograms(
            sandbox=UnavailableSandbox("it broke"),
            workspaces=opened.workspaces,
            environment=ENVIRONMENT,
            permits=asyncio.Semaphore(1),
            observer=observer,
        )
        with pytest.raises(SandboxUnavailableError, match="could not run a program"):
            await programs.run("print(1)", most_s=LONG_S)
    assert observer.ended == [("not_run", False)]


async def test_a_program_that_was_run_is_answered_from_its_record() -> None:
    memory, inner = Memory(), FunctionPrograms(lambda source: ProgramResult(output=source, exit_code=3, elapsed_s=0.5))
    effects, _ = memory.effects()
    programs = JournaledPrograms(programs=inner, effects=effects)
    first = [await programs.run(source, material="m", most_s=1.0) for source in ("a", "b", "a")]
    again, _ = memory.effects(memory.records)
    programs = JournaledPrograms(programs=inner, effects=again)
    assert [await programs.run(source, material="m", most_s=1.0) for source in ("a", "b", "a")] == first
    assert inner.sources == ["a", "b", "a"]
    # Another text is another program, and so is the same one over another material.
    await programs.run("a", material="n", most_s=1.0)
    assert inner.sources == ["a", "b", "a", "a"]


async def test_a_program_that_was_interrupted_is_run_again() -> None:
    memory, inner = Memory(), FunctionPrograms(lambda source: source)
    effects, _ = memory.effects()
    await JournaledPrograms(programs=inner, effects=effects).run("a", most_s=1.0)
    begun = [record for record in memory.records if "-result" not in record.key]
    again, _ = memory.effects(begun)
    assert (await JournaledPrograms(programs=inner, effects=again).run("a", most_s=1.0)).output == "a"
    assert inner.sources == ["a", "a"]


async def test_without_a_journal_every_program_is_run() -> None:
    inner = FunctionPrograms(lambda source: source)
    programs = JournaledPrograms(programs=inner, effects=Effects(nonce="n", tenant="t", journal=None))
    assert programs.is_available
    assert [(await programs.run("a", most_s=1.0)).output for _ in range(2)] == ["a", "a"]
    assert inner.sources == ["a", "a"]
