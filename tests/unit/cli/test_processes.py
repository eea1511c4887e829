"""The start, replacement and end of workers, with small programs as workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from reasond_server.base.addresses import Listening
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.processes import LINK_VARIABLE, Link, Supervisor, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

READY = """
import os, signal, sys, threading
from reasond_server.base.addresses import Listening
from reasond_server.cli.processes import Link
link = Link.of(os.environ)
done = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: done.set())
link.watch()
link.ready(Listening(grpc="g", http="h", token="", model="m", store="s", warnings=("w",)))
"""
WAITING = f"{READY}\nwhile not done.wait(0.05): pass\n"
STUBBORN = f"{READY}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: done.wait(1)\n"


class Heard(logging.Handler):
    """Sets `event` when `message` has been logged `count` times."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(logging.INFO)
        self.event = asyncio.Event()
        self._message = message
        self._left = count

    def emit(self, record: logging.LogRecord) -> None:
        self._left -= record.getMessage() == self._message
        if not self._left:
            self.event.set()


@pytest.fixture
def hear(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str, int], asyncio.Event]]:
    """Return a function whose event is set when a message has been logged a given number of times."""
    caplog.set_level(logging.INFO, logger="reasond.cli")
    log, handlers = logging.getLogger("reasond.cli"), list[logging.Handler]()

    def listen(message: str, count: int) -> asyncio.Event:
        handler = Heard(message, count)
        handlers.append(handler)
        log.addHandler(handler)
        return handler.event

    yield listen
    for handler in handlers:
        log.removeHandler(handler)


class Told:
    """Records the reports of a supervisor."""

    def __init__(self) -> None:
        self.ready: list[Listening] = []
        self.gone: list[int] = []
        self.is_ready = asyncio.Event()

    def note(self, listening: Listening) -> None:
        self.ready.append(listening)
        self.is_ready.set()


def supervisor_of(program: str, told: Told, *arguments: str, workers: int = 2) -> Supervisor:
    return Supervisor(
        command=[sys.executable, "-c", program, *arguments],
        environ=os.environ,
        workers=workers,
        on_ready=told.note,
        on_gone=told.gone.append,
        first_wait_s=0.01,
    )


def pid_of(supervisor: Supervisor, place: int) -> int:
    worker = supervisor._slots[place].worker
    assert worker is not None
    return worker.process.pid


async def test_all_workers_are_ready_before_it_is_told_and_all_end_with_the_supervisor() -> None:
    told = Told()
    supervisor = supervisor_of(WAITING, told, workers=3)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    assert told.ready == [Listening(grpc="g", http="h", token="", model="m", store="s", warnings=("w",))]
    assert len([slot for slot in supervisor._slots if slot.worker]) == 3
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert len(told.gone) == 3


async def test_a_worker_that_dies_is_replaced(
    caplog: pytest.LogCaptureFixture, hear: Callable[[str, int], asyncio.Event]
) -> None:
    told, is_replaced = Told(), hear("worker ready", 3)
    supervisor = supervisor_of(WAITING, told)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    first = pid_of(supervisor, 1)
    os.kill(first, signal.SIGKILL)
    await is_replaced.wait()
    supervisor.end()
    assert await running == 0
    (died,) = [record for record in caplog.records if record.getMessage() == "a worker died and is replaced"]
    assert (vars(died)["pid"], vars(died)["exit_code"]) == (first, -signal.SIGKILL)
    assert len(told.gone) == 3


async def test_a_worker_that_was_told_to_end_did_not_die(
    caplog: pytest.LogCaptureFixture, hear: Callable[[str, int], asyncio.Event]
) -> None:
    told, is_replaced = Told(), hear("worker ready", 3)
    supervisor = supervisor_of(WAITING, told)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    os.kill(pid_of(supervisor, 1), signal.SIGTERM)
    await is_replaced.wait()
    supervisor.end()
    assert await running == 0
    (ended,) = [record for record in caplog.records if record.getMessage().endswith("is replaced")]
    assert (ended.getMessage(), ended.levelname) == ("a worker was ended and is replaced", "INFO")


async def test_a_hangup_restarts_the_workers_each_after_its_successor_is_ready(
    caplog: pytest.LogCaptureFixture, hear: Callable[[str, int], asyncio.Event]
) -> None:
    told, is_over = Told(), hear("the workers were restarted", 2)
    supervisor = supervisor_of(WAITING, told)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    first = {pid_of(supervisor, 0), pid_of(supervisor, 1)}
    is_over_once = hear("the workers were restarted", 1)
    os.kill(os.getpid(), signal.SIGHUP)
    await is_over_once.wait()
    assert set(told.gone) == first
    os.kill(os.getpid(), signal.SIGHUP)
    await is_over.wait()
    assert len(told.gone) == 4
    supervisor.end()
    assert await running == 0
    assert (len(told.gone), len(told.ready)) == (6, 1)
    told_of = [record.getMessage() for record in caplog.records]
    assert told_of.count("worker ready") == 6
    assert "a worker died and is replaced" not in told_of


async def test_where_new_workers_do_not_start_the_old_ones_stay(
    tmp_path: Path, hear: Callable[[str, int], asyncio.Event]
) -> None:
    program = f"import sys, os\nif os.path.exists(sys.argv[1]): raise SystemExit(2)\n{WAITING}"
    told, is_given_up = Told(), hear("a new worker did not start; the old ones stay", 1)
    supervisor = supervisor_of(program, told, str(tmp_path / "broken"))
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    first = [pid_of(supervisor, 0), pid_of(supervisor, 1)]
    (tmp_path / "broken").touch()
    supervisor.restart()
    await is_given_up.wait()
    assert [pid_of(supervisor, 0), pid_of(supervisor, 1)] == first
    (tmp_path / "broken").unlink()
    is_over = hear("the workers were restarted", 1)
    supervisor.restart()
    await is_over.wait()
    supervisor.end()
    assert await running == 0
    assert set(first) < set(told.gone)


async def test_who_ends_in_the_middle_of_a_restart_ends_old_and_new(hear: Callable[[str, int], asyncio.Event]) -> None:
    told, is_restarting = Told(), hear("worker started", 3)
    supervisor = supervisor_of(WAITING, told)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    supervisor.restart()
    await is_restarting.wait()
    supervisor.end()
    assert await running == 0
    assert len(told.gone) == 3


async def test_workers_that_do_not_start_are_given_up_at_once_and_their_exit_code_is_passed_on() -> None:
    told = Told()
    with pytest.raises(CommandError, match="did not start: it ended with exit code 2") as refused:
        await supervise(supervisor_of("raise SystemExit(2)", told))
    assert (refused.value.code, told.ready) == (ExitCode.BAD_REQUEST, [])
    assert len(told.gone) == 1, "the others are started after the first is ready"


async def test_a_worker_that_once_started_and_does_not_any_more_is_given_up_after_a_while(tmp_path: Path) -> None:
    program = f"import sys, os\nif os.path.exists(sys.argv[1]): raise SystemExit(77)\nopen(sys.argv[1], 'w')\n{WAITING}"
    told = Told()
    supervisor = supervisor_of(program, told, str(tmp_path / "began"), workers=1)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    os.kill(pid_of(supervisor, 0), signal.SIGKILL)
    with pytest.raises(CommandError, match="it ended with exit code 77") as refused:
        await running
    assert refused.value.code is ExitCode.FAILURE
    assert len(told.gone) == 5


async def test_where_it_cannot_be_told_that_all_are_ready_they_are_ended() -> None:
    told = Told()

    def fail(_listening: Listening) -> None:
        raise CommandError("the ready file cannot be written")

    supervisor = supervisor_of(WAITING, told)
    supervisor._on_ready = fail
    with pytest.raises(CommandError, match="the ready file cannot be written"):
        await supervise(supervisor)
    assert len(told.gone) == 2


async def test_a_worker_that_hears_nothing_is_killed_by_the_third_signal() -> None:
    told = Told()
    supervisor = supervisor_of(STUBBORN, told, workers=1)
    running = asyncio.create_task(supervise(supervisor))
    await told.is_ready.wait()
    for _ in range(3):
        supervisor.end()
    assert await running == -signal.SIGKILL


async def test_who_ends_before_the_workers_are_ready_waits_for_none_of_them(
    hear: Callable[[str, int], asyncio.Event],
) -> None:
    told, is_started = Told(), hear("worker started", 1)
    supervisor = supervisor_of("import time\ntime.sleep(60)", told)
    running = asyncio.create_task(supervise(supervisor))
    await is_started.wait()
    supervisor.end()
    assert await running == 0
    assert told.ready == []


def test_a_worker_takes_the_line_to_its_supervisor_out_of_what_it_hands_on() -> None:
    ours, theirs = socket.socketpair()
    environ = {LINK_VARIABLE: str(theirs.detach()), "OTHER": "1"}
    link = Link.of(environ)
    assert environ == {"OTHER": "1"}
    assert link is not None
    assert not link._line.get_inheritable()
    link.ready(Listening(grpc="g", http="", token="", model="m", store="s", warnings=()))
    assert ours.recv(1000).endswith(b"}\n")
    ours.close()
    link._line.close()
    assert Link.of(environ) is None
