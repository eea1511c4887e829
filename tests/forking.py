"""Processes of `reasond` that are forked from one that has imported everything: a start costs a third of the time.

Each has its own environment, folder, output and sockets, and can be killed like any other. Only the start of the
interpreter, the imports and, if it is not asked for, the end of the interpreter are left out;
`tests/integration/test_cli.py` and `tests/faults/test_workers.py` have enough processes that run with them.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
REASOND = "reasond_server.cli:main"
PROGRAM = """
import faulthandler, gc, json, os, resource, sys
from importlib import import_module
from importlib.metadata import entry_points

for name in json.loads(sys.argv[1]):
    import_module(name)
for group in ("reasond.strategies", "reasond.tools") if "reasond_server.assembly.app" in sys.modules else ():
    for point in entry_points(group=group):
        point.load()
gc.freeze()


def answer(value):
    print(json.dumps(value), flush=True)


def work(asked, begun):
    if asked["is_session"]:
        # A terminal that it opens now becomes its own, with Ctrl-C.
        os.setsid()
    if asked["open_files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(asked["open_files"]))
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    for number, name in enumerate((asked["stdin"], asked["stdout"], asked["stderr"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.close(begun)
    # The streams of the parent know that they were made for pipes or files.
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if asked["environ"].get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.path[1:1] = filter(None, asked["environ"].get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["reasond", *asked["arguments"]]
    module, _, function = asked["call"].partition(":")
    try:
        code = getattr(import_module(module), function)()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if asked["ends_interpreter"]:
        # It waits for threads and calls what was registered for the exit.
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


for line in sys.stdin:
    asked = json.loads(line)
    if "pid" in asked:
        pid, status = os.waitpid(asked["pid"], os.WNOHANG)
        answer(os.waitstatus_to_exitcode(status) if pid else None)
    else:
        heard, begun = os.pipe()
        if not (child := os.fork()):
            work(asked, begun)
        os.close(begun)
        # The end of this pipe says that the child has opened its files, which may be closed elsewhere now.
        os.read(heard, 1)
        os.close(heard)
        answer(child)
"""
IMPORTED = (
    "reasond",
    "reasond_server.assembly.app",
    "reasond_server.cli.commands.serve",
    "reasond_server.cli.startup_checks",
    "reasond_server.demo",
    "reasond_server.llm.openai.model_factory",
    "reasond_server.storage.postgres_pool",
    "reasond_server.telemetry.exposition",
    "aiohttp",
    "httpx2",
    "tests.faults.server_process",
)
"""What a server or a command may import."""


class ForkingProcess:
    """The process that forks. It answers one request at a time and never waits.

    `options` are those of the interpreter, for the imports and for all that is forked.
    """

    def __init__(self, imported: Sequence[str] = IMPORTED, options: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", PROGRAM, json.dumps(imported)],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "GRPC_VERBOSITY": "ERROR", "GRPC_ENABLE_FORK_SUPPORT": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """Return the answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; processes that it forked go on."""
        self._process.communicate()


@cache
def forking_process(imported: Sequence[str] = IMPORTED, options: Sequence[str] = ()) -> ForkingProcess:
    """Return the process that forks for this one with these imports and options, which ends with it."""
    process = ForkingProcess(imported, options)
    atexit.register(process.close)
    return process


class ForkedProcess:
    """A process that was forked, with the part of `subprocess.Popen` that tests use.

    It runs the function `call` ("module:name") with no environment but `environ`, and without `stdin` with no input.
    What it writes is appended to the files, which it has opened when this returns. With `is_session` it is the first of
    a session, whose terminal these may be. `open_files` are its soft and hard limit of open files. With
    `ends_interpreter` its interpreter ends as that of a program: it waits for threads that are not daemons.
    """

    def __init__(
        self,
        *arguments: str | Path,
        environ: Mapping[str, str],
        folder: Path,
        stderr: Path,
        stdout: Path | None = None,
        stdin: Path | None = None,
        call: str = REASOND,
        is_session: bool = False,
        open_files: tuple[int, int] | None = None,
        ends_interpreter: bool = False,
        parent: ForkingProcess | None = None,
    ) -> None:
        self._parent = parent or forking_process()
        # The exit code can be asked for only once, and tests wait for the end in a thread.
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid: int = self._parent.ask(
            call=call,
            is_session=is_session,
            open_files=open_files,
            ends_interpreter=ends_interpreter,
            arguments=[str(each) for each in arguments],
            environ=dict(environ),
            folder=str(folder.absolute()),
            stdin=str(stdin.absolute()) if stdin else os.devnull,
            stdout=str((stdout or stderr).absolute()),
            stderr=str(stderr.absolute()),
        )

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._parent.ask(pid=self.pid)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        with suppress(ProcessLookupError):  # it has ended, and another thread has asked for its code
            process = os.pidfd_open(self.pid)
            try:
                end = select.poll()
                end.register(process, select.POLLIN)
                end.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(process)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_forked(
    *arguments: str, environ: Mapping[str, str], folder: Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of `reasond` to its end, with the input `stdin` and no environment but `environ`."""
    with tempfile.TemporaryDirectory() as name:
        put, out, err = (Path(name) / stream for stream in ("stdin", "stdout", "stderr"))
        put.write_text(stdin, encoding="utf-8")
        process = ForkedProcess(*arguments, environ=environ, folder=folder, stdin=put, stdout=out, stderr=err)
        code = process.wait()
        return subprocess.CompletedProcess(arguments, code, out.read_text("utf-8"), err.read_text("utf-8"))
