"""`reasond serve`: checks the configuration, sets up logs, starts the server, and announces its addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.examples import Endpoints, format_exports, list_calls
from reasond_server.cli.options import Config, Dev, command
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.processes import (
    Link,
    Supervisor,
    choose_loop_factory,
    end_within,
    provide_open_files,
    reserve_port,
    supervise,
    write_logs,
)
from reasond_server.cli.terminal import choose_stream, write
from reasond_server.config import LoadedSettings, Settings, load, require_servable
from reasond_server.errors.base import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from reasond_server.base.addresses import Listening

app = typer.Typer(rich_markup_mode=None)

EXAMPLE = "Calculate the compound interest on $10,000 at 5% for 3 years"
_WORKERS_VARIABLE = "REASOND__SERVER__WORKERS"
_METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_BESIDE = " " * len("  model  ")
_CLOSING_S = 2.0
_log = logging.getLogger("reasond.cli")


@command(app, "serve")
def serve(
    *,
    config: Config = None,
    is_dev: Dev = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Once ready, write addresses and token there as JSON, for you alone."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=64, help="Processes that serve together; else [server] workers."),
    ] = None,
) -> ExitCode:
    """Serve until SIGTERM or Ctrl-C, then let running calls end; a second signal ends at once."""
    link = Link.of(os.environ)
    environ = {**os.environ, **({} if workers is None else {_WORKERS_VARIABLE: str(workers)})}
    try:
        return _serve_configured(config, environ, is_dev=is_dev, ready_file=ready_file, link=link)
    except SettingsError:
        # The start reports only the first problem; this finds all. Imported here because most starts succeed.
        from reasond_server.cli.startup_checks import require_startable  # noqa: PLC0415 - see above

        require_startable(config, environ, is_dev=is_dev)
        raise


def _serve_configured(
    config: Path | None, environ: Mapping[str, str], *, is_dev: bool, ready_file: Path | None, link: Link | None
) -> ExitCode:
    loaded = load(config, environ)
    write_logs(loaded.settings.logs, is_dev=is_dev)
    is_encrypted = loaded.settings.server.tls == "files"

    def announce(listening: Listening) -> None:
        if ready_file is not None:
            write_ready_file(ready_file, listening)
        _announce(listening, is_dev=is_dev, is_encrypted=is_encrypted)

    if loaded.settings.server.workers > 1:
        require_servable(loaded.settings, dev=is_dev)
        with _remove_before_and_after(ready_file):
            return _serve_together(loaded.settings, environ, config=config, on_ready=announce)
    if link is not None:
        link.watch()
    return _serve_alone(loaded, is_dev=is_dev, ready_file=ready_file, on_ready=announce if link is None else link.ready)


def _serve_together(
    settings: Settings, environ: Mapping[str, str], *, config: Path | None, on_ready: Callable[[Listening], None]
) -> ExitCode:
    """Serve with several processes; the environment gives them their ports and the folder of their metrics."""
    command = [sys.executable, "-m", "reasond_server", "serve", *(["--config", str(config)] if config else [])]
    with contextlib.ExitStack() as stack:
        shared = dict(environ) | {_WORKERS_VARIABLE: "1", "REASOND__SERVER__SO_REUSEPORT": "true"}
        for section, name in (("server", "grpc_address"), ("server", "http_address"), ("metrics", "address")):
            address = getattr(getattr(settings, section), name)
            if address:
                is_shared = settings.server.so_reuseport
                port = stack.enter_context(reserve_port(address, setting=f"[{section}] {name}", is_shared=is_shared))
                shared[f"REASOND__{section}__{name}".upper()] = port
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reasond-metrics-"))
        # A folder named by the user's environment may be missing, or hold the metrics of another run.
        shared[_METRICS_VARIABLE] = folder
        supervisor = Supervisor(
            command=command,
            environ=shared,
            workers=settings.server.workers,
            on_ready=on_ready,
            on_gone=partial(_forget_process, folder=folder),
        )
        code = asyncio.run(supervise(supervisor))
    return ExitCode.OK if code == 0 else ExitCode.FAILURE


def _forget_process(process_id: int, *, folder: str) -> None:
    """Remove the gauges of a worker that has ended from the metrics that the other workers report."""
    if any(Path(folder).iterdir()):
        from reasond_server.telemetry.exposition import forget_process  # noqa: PLC0415 - prometheus_client takes 60 ms

        forget_process(process_id, folder)


def _serve_alone(
    loaded: LoadedSettings, *, is_dev: bool, ready_file: Path | None, on_ready: Callable[[Listening], None]
) -> ExitCode:
    """Serve in this process."""
    provide_open_files(loaded.settings.server)
    from reasond_server.assembly.app import serve as serve_until_stopped  # noqa: PLC0415 - a supervisor does not need gRPC

    with asyncio.Runner(loop_factory=choose_loop_factory()) as runner:
        with _remove_before_and_after(ready_file):
            runner.run(serve_until_stopped(loaded, environ=os.environ, dev=is_dev, on_ready=on_ready))
        end_within(_CLOSING_S)
    return ExitCode.OK


def write_ready_file(path: Path, listening: Listening) -> None:
    """Write addresses and token to `path` atomically, with a mode that only its owner can read.

    Raises:
        CommandError: the file cannot be written.
    """
    content = {
        "grpc": listening.grpc,
        "http": listening.http.partition("://")[2],
        "token": listening.token,
        "metrics": listening.metrics,
    }
    try:
        # mkstemp makes the file with mode 0600, so that other users can never read the token.
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(content, file)
        Path(name).replace(path)
    except OSError as error:
        raise CommandError(
            f"The ready file {str(path)!r} cannot be written: {error.strerror}", code=ExitCode.BAD_REQUEST
        ) from None


def format_banner(listening: Listening, *, is_dev: bool, is_encrypted: bool) -> list[str]:
    """Return the lines with the server's addresses and the commands to try next."""
    place = Endpoints(grpc=listening.grpc, http=listening.http, is_encrypted=is_encrypted)
    mode = "development: loopback only, a key that ends with this process" if is_dev else "tokens of [auth] keys"
    lines = [
        "reasond is ready",
        *([f"  open   {listening.console_link}"] if listening.console else []),
        f"  gRPC   {listening.grpc}",
        f"  HTTP   {listening.http or 'off'}",
        *([f"  counts {listening.metrics}"] if listening.metrics else []),
        f"  model  {listening.model}",
        *(line for warning in listening.warnings for line in _wrap(warning)),
        f"  store  {listening.store}",
        f"  mode   {mode}",
        "",
        "In another terminal:",
        f"  {format_exports(place, listening.token or '<token>')}",
    ]
    return [*lines, *(f"  {command}" for _, command in list_calls(EXAMPLE, place)), "", "Ctrl-C stops the server."]


def _wrap(warning: str) -> list[str]:
    """Return `warning` as lines that are aligned with the values of the banner."""
    return textwrap.wrap(warning, 79, initial_indent=_BESIDE, subsequent_indent=_BESIDE)


def _announce(listening: Listening, *, is_dev: bool, is_encrypted: bool) -> None:
    """Report that the server is ready: as a banner on a terminal, else as a log record."""
    stream = choose_stream()
    if is_dev or stream.isatty():
        write("\n".join(format_banner(listening, is_dev=is_dev, is_encrypted=is_encrypted)), stream=stream)
    else:
        fields = {"grpc": listening.grpc, "http": listening.http, "model": listening.model, "store": listening.store}
        if listening.metrics:
            fields["metrics"] = listening.metrics
        _log.info("ready", extra={**fields, "warnings": "; ".join(listening.warnings)})


@contextlib.contextmanager
def _remove_before_and_after(ready_file: Path | None) -> Iterator[None]:
    """Remove `ready_file` before the start and after the end: it must only describe a running server."""
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
    """Check before the start that a file can be created or replaced at `path`.

    A device or a pipe is not replaced: a process of root would destroy /dev/stdout for the whole machine.
    """
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        text = f"The ready file {str(path)!r} cannot be written: its folder is missing or may not be written to"
        raise CommandError(text, code=ExitCode.BAD_REQUEST)
    if path.exists() and not (path.is_file() or path.is_symlink()):
        text = f"The ready file {str(path)!r} cannot be replaced: it is no regular file"
        raise CommandError(text, code=ExitCode.BAD_REQUEST)
