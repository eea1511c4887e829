"""`reasond repair`: sends the files of a folder, follows the repair, and writes or applies its patch."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond import ExecutionCursor, repair_task
from reasond_server.cli.asking import parse_setting
from reasond_server.cli.check_commands import describe_checks, list_checks
from reasond_server.cli.connecting import failures, open_client, target_of
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.patch_applying import apply_patch
from reasond_server.cli.repair_display import RepairDisplay
from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import human_stream, printable, write
from reasond_server.cli.turn_listing import json_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRepair:
    """The repair of the command line."""

    root: Path
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


def repair(wanted: WantedRepair, *, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Send the files, follow the repair to its end, and write or apply the patch.

    Raises:
        CommandError: an option is wrong, the call failed, or the patch does not apply.
    """
    _require_usable(wanted)
    config = _read_config(wanted)
    if way.timeout_s is None and not environ.get("REASOND_TIMEOUT_S"):
        way = replace(way, timeout_s=_DEFAULT_TIMEOUT_S)
    follower = _Follower(as_json=as_json)
    with open_client(way, environ) as client, failures(target_of(way, environ), has_result=bool):
        served = client.list_environments()
        checks = list_checks(
            wanted.tests,
            regressions=wanted.regressions,
            held_out=wanted.held_out,
            known=served.commands,
        )
        task = repair_task(
            wanted.description,
            environment="" if wanted.is_plan else _choose_environment(wanted, served),
            checks=checks,
            is_plan=wanted.is_plan,
            editable=wanted.editable,
            config=config,
        )
        for line in describe_checks(checks):
            follower.tell(line)
        task.snapshot_id = _send(client, wanted.root, follower)
        result = follower.follow(client, task)
    return _finish(wanted, result)


def _require_usable(wanted: WantedRepair) -> None:
    if not wanted.root.is_dir():
        raise _usage(f"{str(wanted.root)[:200]!r} is no folder", "Name the folder of the project.")
    if wanted.is_plan:
        if wanted.tests or wanted.regressions or wanted.held_out or wanted.is_applied:
            raise _usage("--plan runs nothing and changes nothing", "Leave out the checks and --apply.")
        if not wanted.description:
            raise _usage("--plan needs --description", "Say what is to be planned.")
    elif not wanted.tests and not wanted.regressions:
        raise _usage("there is no check that says when the code is right", 'Such as --test "pytest -q".')


def _read_config(wanted: WantedRepair) -> Mapping[str, object]:
    config: dict[str, object] = dict(map(parse_setting, wanted.settings))
    if wanted.search is not None:
        config["search"] = wanted.search
    return config


def _choose_environment(wanted: WantedRepair, served: ListEnvironmentsResponse) -> str:
    """Return the environment that was named, the only one, or the one named like the toolchain of the project."""
    names = [each.name for each in served.environments]
    if wanted.environment is not None:
        return wanted.environment
    if len(names) == 1:
        return names[0]
    fitting = [
        name
        for name, markers in _MARKERS.items()
        if name in names and any((wanted.root / marker).exists() for marker in markers)
    ]
    if fitting:
        return fitting[0]
    raise _usage(
        "the environment of the checks is not known",
        f"Name it with --environment: {', '.join(names) or 'there is none'}.",
    )


def _send(client: Client, root: Path, follower: _Follower) -> str:
    """Upload the files of a folder, say what was sent and what was not, and return the id of the snapshot."""
    try:
        sent = client.upload_snapshot(root)
    except OSError as error:
        name = f"the file {error.filename} cannot be read: {error.strerror}"
        raise _usage(name, "Make it readable, or let git ignore it.") from None
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
    """Follows the events of a repair, for people or for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._display = None if as_json else RepairDisplay(human_stream())

    def tell(self, line: str) -> None:
        """Tell people what is done; stdout of a program gets events alone."""
        write(printable(line), stream=human_stream() if self._display else sys.stderr)

    def follow(self, client: Client, task: RepairTask) -> Repair | None:
        """Show the events to the end; Ctrl-C cancels the repair."""
        is_live = self._display is not None and self._display.is_live
        stream = client.repair_steps(task, include_deltas=is_live)
        try:
            with self._display.open() if self._display else contextlib.nullcontext(), stream:
                self._show(stream)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self._show_rest(client, stream)
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

    def _show_rest(self, client: Client, stream: RepairStream) -> None:
        """Show the last events of a repair, which the server cancels because its only follower has left."""
        if not stream.execution_id or stream.result is not None:
            return
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


def _finish(wanted: WantedRepair, result: Repair | None) -> ExitCode:
    """Apply an accepted patch, if that is wanted; return the exit code."""
    if result is None:
        return ExitCode.FAILURE
    if word_of(result, "finish_reason") == "CANCELLED":
        return ExitCode.INTERRUPTED
    if not result.is_accepted and not (wanted.is_plan and result.patch):
        if wanted.is_applied:
            warn("nothing was applied, because the patch was not accepted")
        return ExitCode.NOT_ACCEPTED
    if wanted.is_applied and result.patch:
        changed = apply_patch(result.patch, wanted.root)
        write(f"applied to {', '.join(map(printable, changed))}", stream=human_stream())
    return ExitCode.OK


def _usage(message: str, remedy: str) -> CommandError:
    return CommandError(message[:1].upper() + message[1:], remedy=remedy, code=ExitCode.BAD_REQUEST)
