"""MCP programs that are forked from a process that has imported them: a start takes 0.1 s of processor time, not 0.8 s.

The server starts a small program, the relay, as it starts any other. The relay passes its environment, its folder and
the pipes that the server gave it to the process that forks, and each of relay and fork ends with the other.
`test_a_program_is_ended_with_the_server` has a program without all this.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELAY = """
import marshal, os, socket, sys

with socket.socket(socket.AF_UNIX) as forking:
    forking.connect(sys.argv[1])
    asked = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))
    socket.send_fds(forking, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    forking.sendall(asked)
    # Whoever has the pipes must see that the fork closes its ends.
    os.closerange(0, 2)
    forking.recv(1)
"""
FORKING = """
import gc, marshal, os, select, socket, sys, threading
from contextlib import suppress
from importlib import import_module

program = import_module(sys.argv[1])
gc.freeze()


def work(asked):
    length, files, *_ = socket.recv_fds(asked, 4, 3)
    with asked.makefile("rb") as stream:
        arguments, environ, folder = marshal.loads(stream.read(int.from_bytes(length, "big")))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv[1:] = arguments
    threading.Thread(target=end_with_relay, args=(asked,), daemon=True).start()
    program.main()
    sys.stdout.flush()


def end_with_relay(asked):
    asked.recv(1)
    os._exit(1)


def forget_ended():
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


listener = socket.socket(fileno=int(sys.argv[2]))
while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
    asked, _ = listener.accept()
    forget_ended()
    if not os.fork():
        listener.close()
        try:
            work(asked)
        finally:
            os._exit(0)
    asked.close()
forget_ended()
"""


@cache
def forked_command(module: str) -> tuple[str, ...]:
    """Return the command that runs `main` of a module, with the arguments that are added to it.

    The process that forks is started by the first call, which does not wait for it, and ends with this process.
    """
    folder = Path(tempfile.mkdtemp(prefix="fork-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place, relay = folder / "socket", folder / "relay.py"
    relay.write_text(RELAY, encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", FORKING, module, str(listener.fileno())],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    atexit.register(process.communicate)
    return (sys.executable, "-I", "-S", str(relay), str(place))
