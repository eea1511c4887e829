"""Jobs at both levels: what they get, what is kept of them, and how they end."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxFailedError, SandboxLimits
from reasond_server.types.repairs import SourceFile
from tests.sandboxing import (
    ENVIRONMENT,
    FOLDERS,
    LEVELS,
    LIMITS,
    find_survivors,
    run_program,
    running_sandbox,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.sandbox.levels import OpenedSandbox

WAIT_S = 120.0
pytestmark = pytest.mark.asyncio(loop_scope="module")


# One sandbox for all tests, as a server has one for all jobs; to open one takes more than most of these jobs.
@pytest_asyncio.fixture(scope="module", loop_scope="module", params=LEVELS, ids=lambda level: level.value)
async def opened(request: pytest.FixtureRequest) -> AsyncGenerator[OpenedSandbox, None]:
    async with running_sandbox(request.param) as one:
        yield one


async def test_a_job_prints_exits_and_leaves_files(opened: OpenedSandbox) -> None:
    program = "import os, sys; open('made/r.xml', 'w').write('<r/>'); os.write(2, b'told\\n'); sys.exit(3)"
    outcome = await run_program(opened, program, files={"made/kept": b""}, collect=("made/r.xml", "missing"))
    assert (outcome.exit_code, outcome.output, outcome.exceeded) == (3, b"told\n", "")
    assert outcome.collected == {"made/r.xml": b"<r/>"}
    assert 0 < outcome.cpu_s <= outcome.elapsed_s * 8


async def test_a_job_has_no_variables_of_the_server_and_the_same_paths_at_each_level(
    opened: OpenedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    environment = ExecutionEnvironment(
        name="python", also_readable=FOLDERS, variables={"CACHE": "{tmp}/cache:{workspace}"}
    )
    program = "import os; print(sorted(os.environ), os.environ['CACHE'], os.getcwd())"
    outcome = await run_program(opened, program, environment=environment)
    expected = "['CACHE', 'HOME', 'LANG', 'PATH', 'TMPDIR'] /tmp/cache:/workspace /workspace\n"
    assert outcome.output.decode().replace("'LC_CTYPE', ", "").replace("'PWD', ", "") == expected


async def test_a_signal_and_a_missing_command_have_the_codes_of_a_shell(opened: OpenedSandbox) -> None:
    killed = await run_program(opened, "import os; os.abort()")
    assert killed.exit_code == 128 + 6
    tree = await opened.workspaces.write_tree([SourceFile(path="plain", content=b"no program")])
    async with tree.open_workspace({}) as folder:
        for argv, code in ((("no-such-command",), 127), (("./plain",), 126)):
            job = Job(argv=argv, folder=folder, environment=ENVIRONMENT, limits=LIMITS)
            outcome = await opened.sandbox.run(job)
            assert outcome.exit_code == code
            assert argv[0].encode() in outcome.output
    await tree.remove()


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(opened: OpenedSandbox) -> None:
    program = "for number in range(100_000): print(number)"
    limits = SandboxLimits(wall_s=120.0, cpu_s=120.0, output_bytes=4000)
    outcome = await run_program(opened, program, limits=limits)
    assert outcome.exit_code == 0
    assert outcome.is_output_cut
    assert len(outcome.output) == 4000
    assert outcome.output.startswith(b"0\n1\n2\n")
    assert outcome.output.endswith(b"99998\n99999\n")
    whole = "".join(f"{number}\n" for number in range(100_000)).encode()
    assert outcome.output == whole[:1000] + whole[-3000:]


@pytest.mark.parametrize(
    ("program", "limits", "exceeded"),
    [
        ("import time; time.sleep(600)", SandboxLimits(wall_s=1.0), "wall_s"),
        ("while True: pass", SandboxLimits(cpu_s=0.3, wall_s=120.0), "cpu_s"),
        (
            "import os, time\nfor _ in range(4): os.fork()\nwhile True: pass",
            SandboxLimits(cpu_s=0.9, wall_s=120.0),
            "cpu_s",
        ),
        (
            "import time\nkept = [bytearray(b'x' * 50_000_000) for _ in range(8)]\ntime.sleep(600)",
            SandboxLimits(memory_bytes=200_000_000, wall_s=120.0),
            "memory_bytes",
        ),
        (
            "import time\nfor name in range(40): open(str(name), 'wb').write(bytes(1_000_000))\ntime.sleep(600)",
            SandboxLimits(disk_bytes=20_000_000, wall_s=120.0),
            "disk_bytes",
        ),
        (
            (
                "import os, time\nkept = []\nfor name in range(40):\n kept.append(open(str(name), 'wb', 0))\n"
                " os.unlink(str(name))\n kept[-1].write(bytes(1_000_000))\ntime.sleep(600)"
            ),
            SandboxLimits(disk_bytes=20_000_000, wall_s=120.0),
            "disk_bytes",
        ),
    ],
    ids=["sleep", "loop", "loops", "memory", "files", "deleted-files"],
)
async def test_a_job_over_a_limit_is_ended_and_the_limit_named(
    opened: OpenedSandbox, program: str, limits: SandboxLimits, exceeded: str
) -> None:
    outcome = await run_program(opened, program, limits=limits)
    assert outcome.exceeded == exceeded
    assert outcome.exit_code == 128 + 9


async def test_a_job_that_starts_too_many_processes_is_ended_or_gets_no_more(opened: OpenedSandbox) -> None:
    program = "import os, time\nfor _ in range(7): os.fork()\ntime.sleep(600)"
    outcome = await run_program(opened, program, limits=SandboxLimits(processes=40, wall_s=10.0))
    # Users of their own, which jobs of root have, are refused the next process; others are counted.
    assert outcome.exceeded == "processes" or b"BlockingIOError" in outcome.output
    assert not list(find_survivors(opened))


async def test_what_a_job_left_running_is_ended_with_it(opened: OpenedSandbox) -> None:
    program = (
        "import os, signal, time\n"
        "for number in set(range(1, 65)) - {signal.SIGCHLD}:\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while True: time.sleep(1)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('done')"
    )
    outcome = await run_program(opened, program)
    assert (outcome.exit_code, outcome.output) == (0, b"done\n")
    assert not list(find_survivors(opened))


async def test_a_cancelled_job_has_no_process_left_when_the_call_returns(opened: OpenedSandbox) -> None:
    program = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    open('begun', 'w').close()\n"
        "time.sleep(600)"
    )
    tree = await opened.workspaces.write_tree([SourceFile(path="program.py", content=program.encode())])
    async with tree.open_workspace({}) as folder:
        argv = ("/usr/bin/env", "python3", "program.py")
        job = Job(argv=argv, folder=folder, environment=ENVIRONMENT, limits=LIMITS)
        running = asyncio.create_task(opened.sandbox.run(job))
        async with asyncio.timeout(WAIT_S):
            while not (folder / "begun").exists() and not running.done():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        assert list(find_survivors(opened))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not list(find_survivors(opened))
    await tree.remove()


async def test_only_regular_small_files_reached_without_links_are_collected(opened: OpenedSandbox) -> None:
    program = (
        "import os\n"
        "os.mkdir('real'); open('real/file', 'w').write('x')\n"
        "os.symlink('real', 'linked'); os.symlink('/etc/hostname', 'link'); os.mkfifo('pipe')\n"
        "open('large', 'wb').truncate(4 * 1024 * 1024 + 1)\n"
        "open('fits', 'wb').truncate(4 * 1024 * 1024)"
    )
    wanted = ("real/file", "linked/file", "link", "pipe", "large", "fits", "../../secret", "/etc/hostname", "real", "")
    outcome = await run_program(opened, program, collect=wanted)
    assert outcome.exit_code == 0, outcome.output
    assert sorted(outcome.collected) == ["fits", "real/file"]


async def test_folders_of_any_depth_and_without_rights_are_removed(opened: OpenedSandbox) -> None:
    program = "import os\nfor _ in range(3000):\n    os.mkdir('deep'); os.chdir('deep')\nos.mkdir('closed', 0)\n"
    outcome = await run_program(opened, program)
    # Folders nested too deep to be measured count as a full disk, if the job lives long enough for a look.
    assert (outcome.exit_code, outcome.exceeded) in {(0, ""), (137, "disk_bytes")}, outcome.output
    assert not list((opened._scratch.path / "workspaces").iterdir())
    assert not list((opened._scratch.path / "jobs").iterdir())


async def test_a_folder_that_is_not_there_is_a_failure_of_the_sandbox(opened: OpenedSandbox, tmp_path: Path) -> None:
    job = Job(argv=("true",), folder=tmp_path / "missing", environment=ENVIRONMENT, limits=LIMITS)
    with pytest.raises(SandboxFailedError):
        await opened.sandbox.run(job)


async def test_the_processor_time_of_what_was_killed_counts(opened: OpenedSandbox) -> None:
    program = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
    outcome = await run_program(opened, program, limits=SandboxLimits(cpu_s=0.3, wall_s=120.0))
    assert outcome.exceeded == "cpu_s"
    assert outcome.cpu_s >= 0.3


async def test_what_does_not_end_in_time_prints_where_it_is_also_below_a_shell(opened: OpenedSandbox) -> None:
    inner = (
        "import faulthandler, time\nfaulthandler.enable()\ndef wait_for_ever():\n    time.sleep(600)\nwait_for_ever()"
    )
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-I', '-c', {inner!r}])"
    for text in (inner, program):
        outcome = await run_program(opened, text, limits=SandboxLimits(wall_s=5.0))
        assert (outcome.exceeded, outcome.exit_code) == ("wall_s", 128 + 9)
        assert b"in wait_for_ever" in outcome.output


async def test_a_job_begins_with_links_to_the_cache_and_cannot_change_it(opened: OpenedSandbox) -> None:
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name, "cache")
        (cache / "ab").mkdir(parents=True)
        (cache / "ab" / "one").write_text("compiled")
        for folder in (Path(name), cache, cache / "ab"):
            folder.chmod(0o755)
        environment = replace(
            ENVIRONMENT,
            also_readable=(*ENVIRONMENT.also_readable, cache),
            variables={"CACHE": "{tmp}/kept"},
            cache=cache,
            cache_variable="CACHE",
        )
        program = (
            "import os, pathlib\nkept = pathlib.Path(os.environ['CACHE'])\nprint((kept / 'ab/one').read_text())\n"
            "(kept / 'ab/two').write_text('new')\ntry:\n    (kept / 'ab/one').write_text('x')\n"
            "except OSError as error:\n    print('refused')"
        )
        outcome = await run_program(opened, program, environment=environment)
        assert (outcome.output, outcome.exit_code) == (b"compiled\nrefused\n", 0)
        assert [entry.name for entry in os.scandir(cache / "ab")] == ["one"]
