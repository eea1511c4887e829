"""One small process that becomes a shepherd for each job: to fork it takes a tenth of what starting Python takes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from reasond_server.sandbox.shepherd.main import serve; serve()"
)


class Shepherds:
    """Starts shepherds; the process that they are forked from is started when it is needed, and again if it ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, order: Path, lifeline: int) -> int:
        """Start a shepherd for the order in the file `order`, and return the pipe of its answer; blocks.

        Raises:
            OSError: it cannot be started.
        """
        answer, far_end = os.pipe()
        try:
            with self._lock:
                try:
                    self._send(order, lifeline, far_end)
                except OSError:
                    self._stop()
                    self._send(order, lifeline, far_end)
        except BaseException:
            os.close(answer)
            raise
        finally:
            os.close(far_end)
        return answer

    def _send(self, order: Path, lifeline: int, answer: int) -> None:
        if self._socket is None:
            self._begin()
        if self._socket is not None:
            socket.send_fds(self._socket, [str(order).encode()], [lifeline, answer])

    def _begin(self) -> None:
        # Messages keep their bounds: each is one order with its two pipes.
        self._socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_PACKAGES)],
                stdin=far_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )

    def close(self) -> None:
        """End the process; shepherds that run go on to the end of their jobs."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait()
            self._process = None
