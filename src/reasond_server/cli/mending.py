"""`reasond repair`: sends the files of a folder, follows the repair, and writes or applies its patch."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond import ExecutionCursor, repair_task
from reasond_server.cli.asking import parse_cursor, parse_setting
from reasond_server.cli.check_commands import describe_checks, list_checks
from reasond_server.cli.connecting import connect
from reasond_server.cli.live import LiveConsole
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.patch_applying import apply_patch
from reasond_server.cli.repair_display import RepairDisplay
from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import human_stream, printable, write
from reasond_server.cli.turn_listing import json_line
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reasond import Client, ListEnvironmentsResponse, Repair, RepairStepsResponse, RepairStream, RepairTask
    from reasond_server.cli.connecting import Way

# Repairs run many checks: longer than a run of `ask`.
_DEFAULT_TIMEOUT_S: Final = 3600.0
_CANCEL_LIMIT_S: Final = 10.0
_MOST_LISTED: Final = 20
_MARKERS: Final = MappingProxyType(
    {
        "go": ("go.mod",),
        "node": ("package.json",),
        "java": ("pom.xml", "build.gradle", "build.gradle.kts"),
        "python": ("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "pytest.ini", "requirements.txt"),
    }
)
"""Files in the root of a project that tell its toolchain; the first environment of that name is chosen."""


@value
class WantedRepair:
    """The repair of the command line."""

    root: Path | None
    tests: Sequence[str] = ()
    regressions: Sequence[str] = ()
    held_out: Sequence[str] = ()
    environment: str | None = None
    search: str | None = None
    settings: Sequence[str] = ()
    editable: Sequence[str] = ()
    description: str = ""
    is_plan: bool = False
    is_applied: bool = False
    is_kept_running: bool = False
    resume: str | None = None


def repair(
    wanted: WantedRepair, *, way: Way, environ: Mapping[str, str], as_json: bool, is_verbose: bool = False
) -> ExitCode:
    """Send the files, follow the repair to its end, and write or apply the patch.

    With `resume` nothing is sent, and the repair that it names is followed.

    Raises:
        CommandError: an option is wrong, the call failed, or the patch does not apply.
    """
    cursor = None if wanted.resume is None else _read_cursor(wanted, wanted.resume)
    root = _find_root(wanted)
    if way.timeout_s is None and not environ.get("REASOND_TIMEOUT_S"):
        way = replace(way, timeout_s=_DEFAULT_TIMEOUT_S)
    live = None if as_json else LiveConsole(human_stream(), is_verbose=is_verbose)
    follower = _Follower(live, is_kept_running=wanted.is_kept_running)
    with connect(way, environ, has_result=lambda: wanted.is_kept_running, resume="repair") as client:
        result = follower.follow(client, cursor or _make_task(wanted, root, client, follower))
    return _finish(wanted, root, result)


def _make_task(wanted: WantedRepair, root: Path, client: Client, follower: _Follower) -> RepairTask:
    """Return the task of the command line; the files are with the server then."""
    _require_checks(wanted)
    config = _read_config(wanted)
    served = client.list_environments()
    checks = list_checks(
        wanted.tests,
        regressions=wanted.regressions,
        held_out=wanted.held_out,
        known=served.commands,
    )
    task = repair_task(
        wanted.description,
        environment="" if wanted.is_plan else _choose_environment(wanted, root, served),
        checks=checks,
        is_plan=wanted.is_plan,
        editable=wanted.editable,
        config=config,
    )
    for line in describe_checks(checks):
        follower.tell(line)
    task.snapshot_id = _send(client, root, follower)
    return task


def _read_cursor(wanted: WantedRepair, text: str) -> ExecutionCursor:
    """Return from where a repair is followed; the other options are those of a new one."""
    commands = (*wanted.tests, *wanted.regressions, *wanted.held_out)
    if commands or wanted.settings or wanted.editable or wanted.description or wanted.is_plan:
        raise usage_error("--resume follows a repair that was started before", "Leave out its checks and options.")
    if wanted.environment is not None or wanted.search is not None:
        raise usage_error("--resume follows a repair that was started before", "Leave out --environment and --search.")
    execution_id, sequence = parse_cursor(text)
    return ExecutionCursor(execution_id=execution_id, after_sequence=sequence)


def _find_root(wanted: WantedRepair) -> Path:
    """Return the folder of the project; what is only followed needs none."""
    if wanted.root is None and (wanted.resume is None or wanted.is_applied):
        raise usage_error("there is no folder", "Name that of the project, such as: reasond repair .")
    root = wanted.root or Path()
    if not root.is_dir():
        raise usage_error(f"{str(root)[:200]!r} is no folder", "Name the folder of the project.")
    return root


def _require_checks(wanted: WantedRepair) -> None:
    if wanted.is_plan:
        if wanted.tests or wanted.regressions or wanted.held_out or wanted.is_applied:
            raise usage_error("--plan runs nothing and changes nothing", "Leave out the checks and --apply.")
        if not wanted.description:
            raise usage_error("--plan needs --description", "Say what is to be planned.")
    elif not wanted.tests and not wanted.regressions:
        raise usage_error("there is no check that says when the code is right", 'Such as --test "pytest -q".')


def _read_config(wanted: WantedRepair) -> Mapping[str, object]:
    config: dict[str, object] = dict(map(parse_setting, wanted.settings))
    if wanted.search is not None:
        config["search"] = wanted.search
    return config


def _choose_environment(wanted: WantedRepair, root: Path, served: ListEnvironmentsResponse) -> str:
    """Return the environment that was named, the only one, or the one named like the toolchain of the project."""
    names = [each.name for each in served.environments]
    if wanted.environment is not None:
        return wanted.environment
    if len(names) == 1:
        return names[0]
    fitting = [
        name
        for name, markers in _MARKERS.items()
        if name in names and any((root / marker).exists() for marker in markers)
    ]
    if fitting:
        return fitting[0]
    raise usage_error(
        "the environment of the checks is not known",
        f"Name it with --environment: {', '.join(names) or 'there is none'}.",
    )


def _send(client: Client, root: Path, follower: _Follower) -> str:
    """Upload the files of a folder, say what was sent and what was not, and return the id of the snapshot."""
    try:
        sent = client.upload_snapshot(root)
    except OSError as error:
        name = f"the file {error.filename} cannot be read: {error.strerror}"
        raise usage_error(name, "Make it readable, or let git ignore it.") from None
    kept = sent.snapshot
    follower.tell(
        f"{kept.file_count:,} files with {kept.total_bytes:,} bytes below {root}; "
        f"sent {sent.sent_contents:,} with {sent.sent_bytes:,} bytes, the server had the others"
    )
    for left in sent.left_out[:_MOST_LISTED]:
        follower.tell(f"left out: {left.path} ({left.reason})")
    if len(sent.left_out) > _MOST_LISTED:
        follower.tell(f"left out: {len(sent.left_out) - _MOST_LISTED} more")
    return sent.snapshot_id


class _Follower:
    """Follows the events of a repair, for people on `live` or, without it, for programs."""

    def __init__(self, live: LiveConsole | None, *, is_kept_running: bool) -> None:
        self._is_kept_running = is_kept_running
        self._live = live
        self._display = None if live is None else RepairDisplay(live)

    def tell(self, line: str) -> None:
        """Tell people what is done; stdout of a program gets events alone."""
        write(printable(line), stream=human_stream() if self._display else sys.stderr)

    def follow(self, client: Client, source: RepairTask | ExecutionCursor) -> Repair | None:
        """Show the events to the end; Ctrl-C cancels the repair, unless it is kept running."""
        is_live = self._live is not None and self._live.is_live
        stream = client.repair_steps(source, include_deltas=is_live, keep_running=self._is_kept_running)
        try:
            with self._live.open() if self._live else contextlib.nullcontext(), stream:
                self._show(stream)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self._cancel_or_leave(client, stream)
            raise
        finally:
            self._end(stream.result)
        return stream.result

    def _show(self, events: Iterable[RepairStepsResponse]) -> None:
        for event in events:
            if self._display is None:
                write(json_line(event))
            else:
                self._display.show(event)

    def _cancel_or_leave(self, client: Client, stream: RepairStream) -> None:
        """Cancel the repair and show its last events, or say how to follow it again."""
        if not stream.execution_id or stream.result is not None:
            return
        if self._is_kept_running:
            warn(
                f"interrupted; the repair goes on: reasond repair --resume {stream.execution_id}:{stream.last_sequence}"
            )
            return
        # Closing the stream cancels it too, if it was not started to be kept, but only this call waits for its end.
        client.cancel_execution(stream.execution_id, timeout_s=_CANCEL_LIMIT_S)
        cursor = ExecutionCursor(execution_id=stream.execution_id, after_sequence=stream.last_sequence)
        with client.repair_steps(cursor, timeout_s=_CANCEL_LIMIT_S) as rest:
            self._show(rest)
            self._end(rest.result)

    def _end(self, result: Repair | None) -> None:
        if result is None or self._display is None:
            return
        if sys.stdout.isatty():
            self._display.show_patch(result)
        elif result.patch:
            sys.stdout.write(result.patch)
            sys.stdout.flush()
        self._display.show_end(result)


def _finish(wanted: WantedRepair, root: Path, result: Repair | None) -> ExitCode:
    """Apply an accepted patch, if that is wanted; return the exit code."""
    if result is None:
        return ExitCode.FAILURE
    if word_of(result, "finish_reason") == "CANCELLED":
        return ExitCode.INTERRUPTED
    is_plan = word_of(result, "goal") == "PLAN"
    if not result.is_accepted and not (is_plan and result.patch):
        if wanted.is_applied:
            warn("nothing was applied, because the patch was not accepted")
        return ExitCode.NOT_ACCEPTED
    if wanted.is_applied and result.patch and not is_plan:
        changed = apply_patch(result.patch, root)
        write(f"applied to {', '.join(map(printable, changed))}", stream=human_stream())
    return ExitCode.OK
