"""The processes of one server: what each sets up, and their supervisor, which starts, replaces and drains them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from reasond_server.base.addresses import Listening, split_address
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.errors.base import SettingsError, show
from reasond_server.telemetry.logs import configure
from reasond_server.types.values import value

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

    from reasond_server.config import LogsSettings, ServerSettings

LINK_VARIABLE: Final = "REASOND_WORKER_LINK"
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_LONG_LIFE_S: Final = 60.0
_MOST_FAILED_STARTS: Final = 5
# Without a bound, 2**n overflows a float for a worker that fails every few seconds for a day.
_MOST_DOUBLINGS: Final = 16
_LAST_SIGNAL: Final = 3
_log = logging.getLogger("reasond.cli")
# For the database, the models, the metrics and ordinary files.
_OTHERS = 1024


class Link:
    """A worker's socket to its supervisor: reports that it is ready, and stops it when the supervisor is gone."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Link | None:
        """Return the link to the supervisor, and remove its variable from `environ`, so that no child inherits it."""
        number = environ.pop(LINK_VARIABLE, "")
        if not number:
            return None
        line = socket.socket(fileno=int(number))
        line.set_inheritable(False)
        return cls(line)

    def watch(self) -> None:
        """Start a thread that sends SIGTERM to this process if the supervisor dies."""

        def wait() -> None:
            with contextlib.suppress(OSError):
                self._line.recv(1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="supervisor", daemon=True).start()

    def ready(self, listening: Listening) -> None:
        """Report the addresses of this worker."""
        self._line.sendall(json.dumps(asdict(listening)).encode() + b"\n")


@value
class _Worker:
    """A process and the supervisor's end of the socket to it."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ready(self) -> Listening | None:
        """Return its addresses; None if it ended before it was ready."""
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return Listening(**{**message, "warnings": tuple(message["warnings"])})

    def send(self, number: int) -> None:
        """Send it a signal, if it is still running."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass(eq=False, slots=True, kw_only=True)
class _Slot:
    """The place of one worker; a worker that ends is replaced until the slot is closed.

    The slot of a successor is abandoned if its first worker does not start.
    """

    number: int
    is_successor: bool = False
    worker: _Worker | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self, signal_number: int = signal.SIGTERM) -> None:
        """Send the worker the signal, and start no further worker."""
        self.is_closed.set()
        if self.worker is not None:
            self.worker.send(signal_number)


class Supervisor:
    """Keeps `workers` processes of `command` running until `end` is called.

    The first is started alone, so that an error in the settings is reported once. A process that dies is replaced
    after 0.5 s. The wait doubles, up to 30 s, with each process that does not live for a minute. A restart replaces
    the processes one by one; if a new one does not start, the remaining old ones stay. `on_gone` is called with the
    id of each process that has ended.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        environ: Mapping[str, str],
        workers: int,
        on_ready: Callable[[Listening], None],
        on_gone: Callable[[int], None] = lambda _process_id: None,
        first_wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._command = command
        self._environ = environ
        self._on_ready = on_ready
        self._on_gone = on_gone
        self._first_wait_s = first_wait_s
        self._numbers = count()
        self._slots = [_Slot(number=next(self._numbers)) for _ in range(workers)]
        self._keeping: dict[_Slot, asyncio.Task[None]] = {}
        self._is_told_to_restart = asyncio.Event()
        self._signals = 0
        self._worst = 0

    async def run(self) -> int:
        """Start, supervise and end the workers; return the first exit code that is not 0, or else 0.

        Raises:
            CommandError: the workers do not start, or `on_ready` raises it.
        """
        first = self._slots[0]
        beside = [
            asyncio.create_task(self._announce(), name="ready"),
            asyncio.create_task(self._restart_when_told(), name="restarts"),
        ]
        try:
            for slot in self._slots:
                self._keep_up(slot, after=None if slot is first else first)
            # A restart adds tasks; if one of them fails, it ends all others.
            while working := [task for task in self._keeping.values() if not task.done()]:
                await asyncio.wait(working)
        finally:
            for task in beside:
                task.cancel()
            self.end()
            await asyncio.wait([*self._keeping.values(), *beside])
        for task in (*self._keeping.values(), *beside):
            if not task.cancelled():
                task.result()
        return self._worst

    def end(self) -> None:
        """End the workers: the first call drains them, the second ends them at once, the third kills them."""
        self._signals += 1
        for slot in self._keeping:
            slot.close(signal.SIGKILL if self._signals >= _LAST_SIGNAL else signal.SIGTERM)

    def restart(self) -> None:
        """Replace the workers one after the other; an old worker drains when its successor is ready."""
        self._is_told_to_restart.set()

    async def _announce(self) -> None:
        for slot in tuple(self._slots):
            await slot.is_ready.wait()
        try:
            self._on_ready(self._listening)
        except BaseException:
            self.end()
            raise

    async def _restart_when_told(self) -> None:
        for slot in tuple(self._slots):
            await slot.is_ready.wait()
        while True:
            await self._is_told_to_restart.wait()
            self._is_told_to_restart.clear()
            _log.info("the workers are restarted")
            for place in range(len(self._slots)):
                if not await self._replace_slot(place):
                    _log.error("a new worker did not start; the old ones stay")
                    break
            else:
                _log.info("the workers were restarted")

    async def _replace_slot(self, place: int) -> bool:
        """Replace the slot at `place` and wait until its worker has drained; return whether the new one is ready."""
        old, new = self._slots[place], _Slot(number=next(self._numbers), is_successor=True)
        keeping = self._keep_up(new, after=None)
        is_ready = asyncio.create_task(new.is_ready.wait())
        await asyncio.wait([keeping, is_ready], return_when=asyncio.FIRST_COMPLETED)
        is_ready.cancel()
        if not new.is_ready.is_set():
            del self._keeping[new]
            return False
        self._slots[place] = new
        old.close()
        await asyncio.wait([self._keeping[old]])
        del self._keeping[old]
        return True

    def _keep_up(self, slot: _Slot, *, after: _Slot | None) -> asyncio.Task[None]:
        """Keep a worker running in `slot`, from when that of `after` is ready; end all workers if this fails."""

        async def keep() -> None:
            if after is not None:
                await _wait_for_first(after.is_ready, slot.is_closed)
            try:
                await self._keep(slot)
            except BaseException:
                self.end()
                raise

        self._keeping[slot] = task = asyncio.create_task(keep(), name=f"worker {slot.number}")
        return task

    async def _keep(self, slot: _Slot) -> None:
        """Start the worker of `slot`, and restart it whenever it ends."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not slot.is_closed.is_set():
            began_s = loop.time()
            is_ready, code, process_id = await self._run_slot(slot)
            if slot.is_closed.is_set():
                if self._signals:
                    self._worst = self._worst or (0 if code == -signal.SIGTERM else code)
                return
            failures = 1 if loop.time() - began_s > _LONG_LIFE_S else failures + 1
            if not is_ready and (not slot.is_ready.is_set() or failures >= _MOST_FAILED_STARTS):
                if slot.is_successor and not slot.is_ready.is_set():
                    return
                raise _make_start_error(code)
            wait_s = min(self._first_wait_s * 2 ** min(failures - 1, _MOST_DOUBLINGS), _LONGEST_WAIT_S)
            facts = {"worker": slot.number, "pid": process_id, "exit_code": code, "restart_s": wait_s}
            if code:
                _log.error("a worker died and is replaced", extra=facts)
            else:
                _log.info("a worker was ended and is replaced", extra=facts)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(slot.is_closed.wait(), wait_s)

    async def _run_slot(self, slot: _Slot) -> tuple[bool, int, int]:
        """Run one process to its end; return whether it was ready, its exit code and its id."""
        slot.worker = worker = await self._spawn()
        _log.info("worker started", extra={"worker": slot.number, "pid": worker.process.pid})
        if slot.is_closed.is_set():
            worker.send(signal.SIGTERM)
        try:
            listening = await worker.ready()
            if listening is not None:
                self._listening = listening
                slot.is_ready.set()
                _log.info("worker ready", extra={"worker": slot.number, "pid": worker.process.pid})
            code = await worker.process.wait()
        finally:
            slot.worker = None
            worker.writer.close()
        self._on_gone(worker.process.pid)
        return listening is not None, code, worker.process.pid

    async def _spawn(self) -> _Worker:
        """Start a process in its own group: the supervisor forwards Ctrl-C of a terminal."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environ, LINK_VARIABLE: str(number)},
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(number,),
                process_group=0,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return _Worker(process=process, reader=reader, writer=writer)


async def supervise(supervisor: Supervisor) -> int:
    """Run `supervisor` until SIGTERM or SIGINT ends it; SIGHUP restarts it. Raises the errors of its `run`."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, supervisor.restart if number == signal.SIGHUP else supervisor.end)
    try:
        return await supervisor.run()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _wait_for_first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _make_start_error(code: int) -> CommandError:
    known = ExitCode(code) if code in set(ExitCode) and code else ExitCode.FAILURE
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return CommandError(f"A worker did not start: it {how}", remedy="It said above what is wrong.", code=known)


@contextlib.contextmanager
def reserve_port(address: str, *, setting: str, is_shared: bool = False) -> Iterator[str]:
    """Reserve the port of `address` (host:port) while the context lasts; yield the address with port 0 replaced.

    The socket never listens, so it gets no connection; processes of this user that set SO_REUSEPORT can listen.
    With `is_shared` other processes may already use the port, if they share it.

    Raises:
        SettingsError: the port is in use, the host is not an address of this machine, or the system cannot share ports.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise SettingsError("This system cannot share a port among processes", remedy="Set [server] workers = 1.")
    host, port = split_address(address)
    with contextlib.ExitStack() as stack:
        try:
            family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            if port and not is_shared:
                # First without SO_REUSEPORT: another program with that option would get half of the calls.
                with socket.socket(family, socket.SOCK_STREAM) as alone:
                    alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    alone.bind(place)
            keeper = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            keeper.bind(place)
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {show(address)}",
                remedy=f"Another process may use the port, or the host is not of this machine: change {setting}, "
                "or use port 0 to pick a free one.",
            ) from error
        yield f"{address.rpartition(':')[0]}:{keeper.getsockname()[1]}"


def provide_open_files(server: ServerSettings) -> None:
    """Raise the soft limit of open files to the maximum number of connections; log if the hard limit is lower.

    A process without a free descriptor accepts no connection on any listener, and logs nothing about it.
    """
    needed = server.max_grpc_connections + server.max_http_connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    within = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (within, hard))
    except (OSError, ValueError):
        within = soft
    if within < needed:
        _log.warning(
            "the process may open %d files, and %d connections with what it needs besides take %d: no client is let in "
            "when they are used up. Raise the limit (LimitNOFILE, ulimit -n), or lower [server] max_grpc_connections "
            "and max_http_connections",
            within,
            needed - _OTHERS,
            needed,
        )


def write_logs(logs: LogsSettings, *, is_dev: bool) -> None:
    """Configure logging to stderr from the settings."""
    is_terminal = sys.stderr.isatty()
    configure(
        sys.stderr,
        is_human=logs.format == "human" or (logs.format == "auto" and (is_dev or is_terminal)),
        level=logging.getLevelNamesMapping()[logs.level.upper()],
        has_colors=is_terminal and not os.environ.get("NO_COLOR"),
    )


def end_within(seconds: float) -> None:
    """End the process with success after `seconds`, if it has not ended by itself.

    The server has stopped by then. Only a task or thread that does not stop, of a strategy, a tool or the reader of a
    document, can keep the interpreter alive, and the interpreter would wait for it for ever.
    """

    def end() -> None:
        _log.error("a strategy, a tool or a document that is read keeps the process from ending; it is ended now")
        os._exit(ExitCode.OK)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def choose_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loop if that extra is installed, else None for asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
