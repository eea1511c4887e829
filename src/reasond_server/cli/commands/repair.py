"""`reasond repair`: sends the files of a folder, follows the repair, and writes or applies its patch."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from reasond import Check, CheckRole, ExecutionCursor, ResultFormat, UnavailableError, repair_task
from reasond_server.cli.connection import ConnectionOptions, connect, format_json
from reasond_server.cli.options import SHORTEST_S, AsEvents, Environ, Verbose, command, parse_cursor, parse_setting
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.patch_files import apply_patch
from reasond_server.cli.show.live import LiveConsole
from reasond_server.cli.show.repair import RepairDisplay
from reasond_server.cli.terminal import choose_stream, get_enum_name, sanitize, write
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from reasond import Client, Finding, ListEnvironmentsResponse, Repair, RepairStepsResponse, RepairStream, RepairTask

app = typer.Typer(rich_markup_mode=None)

Tests = Annotated[list[str] | None, typer.Option(metavar="COMMAND", help="It fails now and shall pass; repeatable.")]
Regressions = Annotated[
    list[str] | None, typer.Option(metavar="COMMAND", help="What passes now shall go on passing; repeatable.")
]
HeldOut = Annotated[
    list[str] | None,
    typer.Option("--held-out", metavar="COMMAND", help="It judges the winner alone, once; repeatable."),
]
Editable = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Tests or configuration that may be changed all the same; repeatable."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Folder or pattern of paths below PATH; nothing else is sent; repeatable."),
]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="PATH:LINE|RULE", help="A line that needs review, or a rule, that is right; repeatable."
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", metavar="[CHECK=]SECONDS", help="Longest time of one run of a check, or of all; repeatable."
    ),
]
EnvironmentName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Environment of the server for the commands; else guessed.")
]
SearchName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="refine_beam, lats, greedy, best_of_n or tournament; else the server's."),
]
RepairTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=SHORTEST_S, help="Longest time for the repair.", show_default="3600"),
]
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
REPORT: Final = "{report}"
"""Stands in a command for the path of its report, which the server chooses."""
FORMATS: Final = {
    "junit": ResultFormat.RESULT_FORMAT_JUNIT,
    "go_json": ResultFormat.RESULT_FORMAT_GO_JSON,
    "tap": ResultFormat.RESULT_FORMAT_TAP,
    "exit_code": ResultFormat.RESULT_FORMAT_EXIT_CODE,
}
_ROLES: Final = {
    "test": CheckRole.CHECK_ROLE_REPRODUCE,
    "regression": CheckRole.CHECK_ROLE_REGRESSION,
    "held-out": CheckRole.CHECK_ROLE_HELD_OUT,
}


@command(app, "repair", timeout=RepairTimeout)
def repair(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="Folder of the project; with --resume only --apply needs it."),
    ] = None,
    *,
    test: Tests = None,
    regression: Regressions = None,
    held_out: HeldOut = None,
    environment: EnvironmentName = None,
    search: SearchName = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the repair; repeatable.")
    ] = None,
    only: Only = None,
    editable: Editable = None,
    allow: Allowed = None,
    limit: Limits = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What is wrong or wanted, in words.")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Write a plan instead of a patch; nothing is run.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Apply an accepted patch, whole or not at all.")] = False,
    connection: ConnectionOptions,
    environ: Environ,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Let the repair go on when this command is interrupted or cut off.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="EXECUTION[:SEQUENCE]", help="Follow a repair after that event instead.")
    ] = None,
    is_verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Have failing code repaired: candidates are run on the server until one passes the checks.

    A command may begin with how it reports (junit, go_json, tap or exit_code), as in "tap:prove -v". pytest, go test
    and node --test need no such word.

    What git lists below PATH is sent, without .env* and keys. Where stdout is no terminal it gets the patch alone, and
    the rest goes to stderr. Ctrl-C cancels the repair.
    """
    options = RepairOptions(
        root=path,
        tests=test or (),
        regressions=regression or (),
        held_out=held_out or (),
        environment=environment,
        search=search,
        settings=settings or (),
        only=only or (),
        editable=editable or (),
        allowed=allow or (),
        limits=limit or (),
        description=description,
        is_plan=plan,
        is_applied=apply,
        is_kept_running=keep_running,
        resume=resume,
    )
    cursor = None if resume is None else _read_cursor(options, resume)
    root = _find_root(options)
    if connection.timeout_s is None and not environ.get("REASOND_TIMEOUT_S"):
        connection = replace(connection, timeout_s=_DEFAULT_TIMEOUT_S)
    live = None if as_json else LiveConsole(choose_stream(), is_verbose=is_verbose)
    follower = _Follower(live, is_kept_running=keep_running)
    with connect(connection, environ, has_result=lambda: keep_running, resume="repair") as client:
        result = follower.follow(client, cursor or _make_task(options, root, client, follower))
    return conclude(options, root, result)


@value
class RepairOptions:
    """The repair of the command line."""

    root: Path | None
    tests: Sequence[str] = ()
    regressions: Sequence[str] = ()
    held_out: Sequence[str] = ()
    environment: str | None = None
    search: str | None = None
    settings: Sequence[str] = ()
    only: Sequence[str] = ()
    editable: Sequence[str] = ()
    allowed: Sequence[str] = ()
    limits: Sequence[str] = ()
    description: str = ""
    is_plan: bool = False
    is_applied: bool = False
    is_kept_running: bool = False
    resume: str | None = None


def _make_task(options: RepairOptions, root: Path, client: Client, follower: _Follower) -> RepairTask:
    """Return the task of the command line; the files are with the server then."""
    _require_checks(options)
    config = _read_config(options)
    served = client.list_environments()
    checks = list_checks(
        options.tests, regressions=options.regressions, held_out=options.held_out, known=served.commands
    )
    set_limits(checks, options.limits)
    task = repair_task(
        options.description,
        environment="" if options.is_plan else _choose_environment(options, root, served),
        checks=checks,
        is_plan=options.is_plan,
        editable=options.editable,
        config=config,
    )
    for line in describe_checks(checks):
        follower.tell(line)
    task.snapshot_id = _send(client, root, options.only, follower)
    return task


def _read_cursor(options: RepairOptions, text: str) -> ExecutionCursor:
    """Return from where a repair is followed; the other options are those of a new one."""
    commands = (*options.tests, *options.regressions, *options.held_out)
    if commands or options.settings or options.editable or options.description or options.is_plan:
        raise usage_error("--resume follows a repair that was started before", "Leave out its checks and options.")
    if options.environment is not None or options.search is not None:
        raise usage_error("--resume follows a repair that was started before", "Leave out --environment and --search.")
    execution_id, sequence = parse_cursor(text)
    return ExecutionCursor(execution_id=execution_id, after_sequence=sequence)


def _find_root(options: RepairOptions) -> Path:
    """Return the folder of the project; what is only followed needs none."""
    if options.root is None and (options.resume is None or options.is_applied):
        raise usage_error("there is no folder", "Name that of the project, such as: reasond repair .")
    root = options.root or Path()
    if not root.is_dir():
        raise usage_error(f"{str(root)[:200]!r} is no folder", "Name the folder of the project.")
    return root


def _require_checks(options: RepairOptions) -> None:
    if options.is_plan:
        if options.tests or options.regressions or options.held_out or options.is_applied:
            raise usage_error("--plan runs nothing and changes nothing", "Leave out the checks and --apply.")
        if not options.description:
            raise usage_error("--plan needs --description", "Say what is to be planned.")
    elif not options.tests and not options.regressions and not _read_config(options).get("allow_unreproduced"):
        remedy = 'Such as --test "pytest -q"; for static analysis alone --set allow_unreproduced=true.'
        raise usage_error("there is no check that says when the code is right", remedy)


def _read_config(options: RepairOptions) -> Mapping[str, object]:
    config: dict[str, object] = dict(map(parse_setting, options.settings))
    if options.search is not None:
        config["search"] = options.search
    return config


def _choose_environment(options: RepairOptions, root: Path, served: ListEnvironmentsResponse) -> str:
    """Return the environment that was named, the only one, or the one named like the toolchain of the project."""
    names = [each.name for each in served.environments]
    if options.environment is not None:
        return options.environment
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


def _send(client: Client, root: Path, only: Sequence[str], follower: _Follower) -> str:
    """Upload the files of a folder, say what was sent and what was not, and return the id of the snapshot."""
    try:
        sent = client.upload_snapshot(root, only=only)
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
        write(sanitize(line), stream=choose_stream() if self._display else sys.stderr)

    def follow(self, client: Client, source: RepairTask | ExecutionCursor) -> Repair | None:
        """Show the events to the end; Ctrl-C cancels the repair, unless it is kept running."""
        is_live = self._live is not None and self._live.is_live
        stream = client.repair_steps(source, include_deltas=is_live, keep_running=self._is_kept_running)
        try:
            with self._live.open() if self._live else contextlib.nullcontext(), stream:
                self._show(stream)
        except UnavailableError:
            if stream.execution_id:
                place = f"{stream.execution_id}:{stream.last_sequence}"
                warn(f"the server is gone; once it answers again: reasond repair --resume {place}")
            raise
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
                write(format_json(event))
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


def conclude(options: RepairOptions, root: Path, result: Repair | None) -> ExitCode:
    """Apply an accepted patch, if that is wanted; return the exit code."""
    if result is None:
        return ExitCode.FAILURE
    if get_enum_name(result, "finish_reason") == "CANCELLED":
        return ExitCode.INTERRUPTED
    is_plan = get_enum_name(result, "goal") == "PLAN"
    if not result.is_accepted and not (is_plan and result.patch):
        if options.is_applied:
            warn("nothing was applied, because the patch was not accepted")
        return ExitCode.NOT_ACCEPTED
    if unseen := [one for one in result.suspect_lines if not _is_allowed(one, options.allowed)]:
        place = f"{unseen[0].path}:{unseen[0].line}"
        warn(f"{len(unseen)} lines need review, such as {place}, which {unseen[0].message}. If they are right:")
        warn(f"reasond repair PATH --resume {result.execution_id} --apply --allow {place}")
        return ExitCode.NEEDS_REVIEW
    if not is_plan and get_enum_name(result, "verification") == "NONE" and "unchecked" not in options.allowed:
        warn("nothing of the patch was run, so it needs review; --allow unchecked takes it as it is")
        return ExitCode.NEEDS_REVIEW
    if options.is_applied and result.patch and not is_plan:
        changed = apply_patch(result.patch, root)
        write(f"applied to {', '.join(map(sanitize, changed))}", stream=choose_stream())
    return ExitCode.OK


def _is_allowed(finding: Finding, allowed: Sequence[str]) -> bool:
    rule = finding.rule_id.rpartition(".")[2]
    return not {f"{finding.path}:{finding.line}", finding.path, finding.rule_id, rule}.isdisjoint(allowed)


def set_limits(checks: Sequence[Check], limits: Sequence[str]) -> None:
    """Set the longest time of a run: "test=30" for the check of that name, "30" for all.

    Raises:
        CommandError: a limit is no number of seconds, or there is no such check.
    """
    for text in limits:
        name, mark, number = text.rpartition("=")
        chosen = [check for check in checks if not mark or check.name == name]
        try:
            seconds = float(number)
        except ValueError:
            seconds = math.nan
        if not seconds > 0 or math.isinf(seconds):
            raise usage_error(f"--limit {text[:80]!r} has no seconds", "Such as --limit 30 or --limit test=30.")
        if not chosen:
            known = ", ".join(check.name for check in checks)
            raise usage_error(f"--limit {text[:80]!r} names no check", f"The checks are {known}.")
        for check in chosen:
            check.timeout.FromNanoseconds(round(seconds * 1e9))


def list_checks(
    tests: Sequence[str],
    *,
    regressions: Sequence[str] = (),
    held_out: Sequence[str] = (),
    known: Collection[str] = (),
) -> Sequence[Check]:
    """Return the checks in this order; a command of one word that is in `known` is one of the server.

    A command may begin with how it reports: `tap:prove -v`. Else that is told by its program.

    Raises:
        CommandError: a command has no words or an open quote.
    """
    commands = {"test": tests, "regression": regressions, "held-out": held_out}
    return [
        _make_check(name if number == 1 else f"{name}-{number}", _ROLES[name], text, known=known)
        for name, texts in commands.items()
        for number, text in enumerate(texts, start=1)
    ]


def describe_checks(checks: Sequence[Check]) -> Iterator[str]:
    """Yield a line for each check: its name, and the command that the server will run."""
    for check in checks:
        yield f"{check.name}: {shlex.join(check.argv) if check.argv else f'{check.command} (of the server)'}"


def _make_check(name: str, role: CheckRole.ValueType, text: str, *, known: Collection[str]) -> Check:
    form, colon, rest = text.partition(":")
    has_form = bool(colon) and form in FORMATS
    try:
        words = shlex.split(rest if has_form else text)
    except ValueError as error:
        raise usage_error(f"the command {text[:80]!r} cannot be read: {error}", "Quote it as in a shell.") from None
    if not words:
        raise usage_error(f"--{name} is empty", 'Such as --test "pytest -q".')
    if len(words) == 1 and words[0] in known:
        check = Check(name=name, role=role, command=words[0])
    else:
        argv, result_format = (words, FORMATS[form]) if has_form else _add_report(words)
        check = Check(name=name, role=role, argv=argv, format=result_format)
    if has_form:
        check.format = FORMATS[form]
    return check


def _add_report(words: list[str]) -> tuple[list[str], ResultFormat.ValueType]:
    """Return the command with the option that makes a known runner report its tests, and the form of the report."""
    program = PurePath(words[0]).name
    is_module = program.startswith("python") and "-m" in words
    if any(REPORT in word for word in words):
        return words, FORMATS["junit"]
    if program in {"pytest", "py.test"} or (is_module and words[words.index("-m") + 1 :][:1] == ["pytest"]):
        return [*words, f"--junitxml={REPORT}"], FORMATS["junit"]
    if program == "go" and words[1:2] == ["test"]:
        return words if "-json" in words else [*words[:2], "-json", *words[2:]], FORMATS["go_json"]
    if program == "node" and "--test" in words:
        place = words.index("--test") + 1
        has_reporter = any(word.startswith("--test-reporter") for word in words)
        return words if has_reporter else [*words[:place], "--test-reporter=tap", *words[place:]], FORMATS["tap"]
    return words, FORMATS["exit_code"]
