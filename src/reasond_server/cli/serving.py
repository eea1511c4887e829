"""`reasond serve`: refusals first, then logs, then the server; says where it answers once it does."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import sys
import tempfile
import textwrap
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.app import serve as serve_until_stopped
from reasond_server.cli.calls import Place, calls, exports
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.terminal import human_stream, write
from reasond_server.config import load
from reasond_server.telemetry.logs import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reasond_server.app import Listening
    from reasond_server.config import LogsSettings

EXAMPLE = "Calculate the compound interest on $10,000 at 5% for 3 years"

_BESIDE = " " * len("  model  ")
_CLOSING_S = 2.0
_log = logging.getLogger("reasond.cli")


def serve(*, config: Path | None, is_dev: bool, ready_file: Path | None) -> ExitCode:
    """Serve until a signal ends it.

    Raises:
        SettingsError: the configuration must not or cannot be served; nothing was printed before.
        CommandError: the ready file cannot be written.
    """
    loaded = load(config, os.environ)
    _write_logs(loaded.settings.logs, is_dev=is_dev)
    is_encrypted = loaded.settings.server.tls == "files"

    def announce(listening: Listening) -> None:
        _announce(listening, is_dev=is_dev, is_encrypted=is_encrypted)
        if ready_file is not None:
            write_ready_file(ready_file, listening)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        with _removing(ready_file):
            runner.run(serve_until_stopped(loaded, environ=os.environ, dev=is_dev, on_ready=announce))
        _end_within(_CLOSING_S)
    return ExitCode.OK


def _write_logs(logs: LogsSettings, *, is_dev: bool) -> None:
    """Let the process log to stderr as the settings say."""
    is_terminal = sys.stderr.isatty()
    configure(
        sys.stderr,
        is_human=logs.format == "human" or (logs.format == "auto" and (is_dev or is_terminal)),
        level=logging.getLevelNamesMapping()[logs.level.upper()],
        has_colors=is_terminal and not os.environ.get("NO_COLOR"),
    )


def _end_within(seconds: float) -> None:
    """End the process with success after `seconds`, if it has not ended by itself.

    The server is down by then. Only a task or a thread of a strategy that does not stop can keep the interpreter
    up, and it would wait for it for ever.
    """

    def end() -> None:
        _log.error("a strategy keeps the process from ending; it is ended now")
        os._exit(ExitCode.OK)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def write_ready_file(path: Path, listening: Listening) -> None:
    """Write addresses and token to `path` in one step, readable for its owner only.

    Raises:
        CommandError: it cannot be written.
    """
    content = {
        "grpc": listening.grpc,
        "http": listening.http.partition("://")[2],
        "token": listening.token,
        "metrics": listening.metrics,
    }
    try:
        # mkstemp makes the file with mode 0600, so that the token is never readable for others
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(content, file)
        Path(name).replace(path)
    except OSError as error:
        raise CommandError(
            f"The ready file {str(path)!r} cannot be written: {error.strerror}", code=ExitCode.BAD_REQUEST
        ) from None


def banner(listening: Listening, *, is_dev: bool, is_encrypted: bool) -> list[str]:
    """Return the lines that say where the server answers and what to type next."""
    place = Place(grpc=listening.grpc, http=listening.http, is_encrypted=is_encrypted)
    mode = "development: loopback only, a key that ends with this process" if is_dev else "tokens of [auth] keys"
    lines = [
        "reasond is ready",
        f"  gRPC   {listening.grpc}",
        f"  HTTP   {listening.http or 'off'}",
        *([f"  counts {listening.metrics}"] if listening.metrics else []),
        f"  model  {listening.model}",
        *(line for warning in listening.warnings for line in _wrapped(warning)),
        f"  store  {listening.store}",
        f"  mode   {mode}",
        "",
        "In another terminal:",
        f"  {exports(place, listening.token or '<token>')}",
    ]
    return [*lines, *(f"  {command}" for _, command in calls(EXAMPLE, place)), "", "Ctrl-C stops the server."]


def _wrapped(warning: str) -> list[str]:
    """Return `warning` as lines that stand below the values of the banner."""
    return textwrap.wrap(warning, 79, initial_indent=_BESIDE, subsequent_indent=_BESIDE)


def _announce(listening: Listening, *, is_dev: bool, is_encrypted: bool) -> None:
    """Say that the server is ready: as a banner to a person, as a log record to a machine."""
    stream = human_stream()
    if is_dev or stream.isatty():
        write("\n".join(banner(listening, is_dev=is_dev, is_encrypted=is_encrypted)), stream=stream)
    else:
        fields = {"grpc": listening.grpc, "http": listening.http, "model": listening.model, "store": listening.store}
        if listening.metrics:
            fields["metrics"] = listening.metrics
        _log.info("ready", extra={**fields, "warnings": "; ".join(listening.warnings)})


@contextlib.contextmanager
def _removing(ready_file: Path | None) -> Iterator[None]:
    """Keep `ready_file` from speaking of a server that is not there, before the start and after the end."""
    if ready_file is None:
        yield
        return
    try:
        _require_replaceable(ready_file)
        ready_file.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(
            f"The ready file {str(ready_file)!r} cannot be replaced: {error.strerror}", code=ExitCode.BAD_REQUEST
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            ready_file.unlink(missing_ok=True)


def _require_replaceable(path: Path) -> None:
    """Refuse a path at which a file can neither be made nor replaced, before the server has started for nothing.

    A device or a pipe is not replaced: whoever runs as root would lose /dev/stdout for the whole machine.
    """
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        text = f"The ready file {str(path)!r} cannot be written: its folder is missing or may not be written to"
        raise CommandError(text, code=ExitCode.BAD_REQUEST)
    if path.exists() and not (path.is_file() or path.is_symlink()):
        text = f"The ready file {str(path)!r} cannot be replaced: it is no regular file"
        raise CommandError(text, code=ExitCode.BAD_REQUEST)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop where that extra is installed, else None for asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
