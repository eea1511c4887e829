"""`reasond ask`: starts or resumes the stream of a run, shows its progress, and writes its answer to stdout."""

from __future__ import annotations

import contextlib
import json
import mimetypes
import sys
from typing import Annotated, Any, BinaryIO, Final

import typer

from reasond import Budget, Client, ReasoningStream, ReasonIterationsResponse
from reasond_server.cli.connection import ConnectionOptions, connect, format_json
from reasond_server.cli.options import (
    MOST_COUNT,
    AsEvents,
    Environ,
    Timeout,
    Verbose,
    command,
    parse_cursor,
    parse_setting,
)
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.show.live import LiveConsole
from reasond_server.cli.show.run import HumanOutput, RunOutput
from reasond_server.cli.terminal import choose_stream, write
from reasond_server.documents.documents import (
    MAX_DOCUMENT_BYTES,
    UnreadableDocumentError,
    find_kind,
    may_be_document,
    read_document,
)
from reasond_server.types.values import value

app = typer.Typer(rich_markup_mode=None)

Query = Annotated[str | None, typer.Argument(metavar="[QUESTION]", help="The question; left out with --resume.")]
StrategyName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Strategy; else the agent or the server chooses.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the strategy; repeat for more than one."),
]
Material = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The long text that the question is about, PDF and DOCX too; - reads stdin."),
]
AgentId = Annotated[str, typer.Option(metavar="ID", help="Registered agent whose strategies apply.")]
System = Annotated[str, typer.Option(metavar="TEXT", help="Instructions for every model call.")]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="A backend that the server offers; else its own model.")
]
Schema = Annotated[
    str | None, typer.Option(metavar="FILE", help="JSON Schema that the answer must satisfy; - reads stdin.")
]
Images = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="An image that the question is about; may be repeated.")
]
History = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The messages before the question, a JSON list or JSON lines of role and text; - reads stdin.",
    ),
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="The answer ends before this text; may be repeated.")
]
MaxOutputTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MOST_COUNT, help="Most tokens that all model calls together may write."),
]
KeepRunning = Annotated[
    bool, typer.Option("--keep-running", help="Let the run go on when this command is interrupted or cut off.")
]
ResumePoint = Annotated[
    str | None, typer.Option(metavar="EXECUTION[:SEQUENCE]", help="Follow a run after that event instead.")
]

MAX_MATERIAL_BYTES: Final = 2_000_000
MAX_IMAGE_BYTES: Final = 3_500_000
_CANCEL_LIMIT_S = 5.0
_STDIN = "-"


@command(app, "ask", timeout=Timeout, context_settings={"allow_extra_args": True})
def ask(
    context: typer.Context,
    query: Query = None,
    *,
    strategy: StrategyName = None,
    settings: Settings = None,
    material: Material = None,
    agent: AgentId = "",
    system: System = "",
    model: Model = None,
    schema: Schema = None,
    image: Images = None,
    history: History = None,
    stop: Stop = None,
    max_output_tokens: MaxOutputTokens = None,
    connection: ConnectionOptions,
    environ: Environ,
    keep_running: KeepRunning = False,
    resume: ResumePoint = None,
    is_verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Ask a question and watch it being worked out; Ctrl-C cancels the run.

    Where stdout is no terminal it gets the answer alone, and the steps go to stderr.
    """
    if context.args:
        whole = " ".join([query or "", *context.args])
        raise usage_error("the question has more than one word", f'Write it in quotes: reasond ask "{whole[:200]}"')
    request = AskRequest(
        query=query,
        strategy=strategy,
        settings=tuple(settings or ()),
        material=material,
        agent=agent,
        system=system,
        model=model,
        schema=schema,
        images=tuple(image or ()),
        history=history,
        stop=tuple(stop or ()),
        max_output_tokens=max_output_tokens,
        is_kept_running=keep_running,
        resume=resume,
    )
    live = LiveConsole(choose_stream(), is_verbose=is_verbose)
    viewer: RunOutput = _JsonOutput() if as_json else HumanOutput(live, query or "")
    with connect(connection, environ, has_result=lambda: viewer.has_result) as client:
        stream = _open_stream(request, client, wants_deltas=viewer.wants_deltas)
        try:
            with viewer.display(), stream:
                viewer.follow(stream)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                _cancel_or_leave(client, stream, viewer, is_kept_running=keep_running)
            return ExitCode.INTERRUPTED
        finally:
            # The stream of a failed run delivers a partial result before the call raises: it is shown too.
            viewer.finish()
        return viewer.exit_code


@value
class AskRequest:
    """The request of the command line: a query with its options, or a run to follow."""

    query: str | None
    strategy: str | None
    settings: tuple[str, ...]
    material: str | None
    agent: str
    system: str
    model: str | None
    schema: str | None
    images: tuple[str, ...]
    history: str | None
    stop: tuple[str, ...]
    max_output_tokens: int | None
    is_kept_running: bool
    resume: str | None


def _cancel_or_leave(client: Client, stream: ReasoningStream, viewer: RunOutput, *, is_kept_running: bool) -> None:
    """Cancel the run on the server and show its partial result, or print how to resume its stream."""
    if not stream.execution_id or stream.result is not None:
        return
    if is_kept_running:
        warn(f"interrupted; the run goes on: reasond ask --resume {stream.execution_id}:{stream.last_sequence}")
        return
    # Closing the stream cancels the run too, but only this call waits until the log has the final event.
    client.cancel_execution(stream.execution_id, timeout_s=_CANCEL_LIMIT_S)
    rest = client.resume(stream.execution_id, after_sequence=stream.last_sequence, timeout_s=_CANCEL_LIMIT_S)
    with rest:
        viewer.follow(rest)


class _JsonOutput(RunOutput):
    """For programs: writes every event as one line of JSON to stdout, with the field names of the protos.

    Fields that are 0, false or empty are printed too: the first step has the index 0, and an absence of warnings is an
    empty list.
    """

    def show(self, event: ReasonIterationsResponse) -> None:
        write(format_json(event))


def _open_stream(request: AskRequest, client: Client, *, wants_deltas: bool) -> ReasoningStream:
    """Return the stream that `request` asks for."""
    if request.resume is not None:
        return _resume(request, client, wants_deltas=wants_deltas)
    if request.query is None:
        raise usage_error("there is no question", 'Write it in quotes: reasond ask "What is 7 times 6?"')
    if [request.material, request.schema, request.history].count(_STDIN) > 1:
        raise usage_error("only one of --material, --schema and --history can read stdin", "Name files for the others.")
    strategy = request.strategy or (_find_default_strategy(request, client) if request.settings else None)
    return client.reason_iterations(
        _require_utf8(request.query, "the question"),
        material=_read_text(request.material, "--material") if request.material is not None else "",
        strategy=strategy,
        config=dict(map(parse_setting, request.settings)) if request.settings else None,
        agent=request.agent,
        budget=None if request.max_output_tokens is None else Budget(max_output_tokens=request.max_output_tokens),
        system=_require_utf8(request.system, "--system"),
        history=() if request.history is None else _read_history(request.history),
        model=request.model,
        answer_schema=None if request.schema is None else _read_schema(request.schema),
        stop=[_require_utf8(text, "--stop") for text in request.stop],
        images=[_read_image(name) for name in request.images],
        include_deltas=wants_deltas,
        keep_running=request.is_kept_running,
    )


def _resume(request: AskRequest, client: Client, *, wants_deltas: bool) -> ReasoningStream:
    asked = (request.query, request.material, request.model, request.schema, request.history)
    others = (request.strategy, request.settings, request.system, request.images, request.stop)
    if any(each is not None for each in (*asked, request.max_output_tokens)) or any(others):
        raise usage_error("--resume follows a run that was started before", "Leave out the question and its options.")
    execution_id, sequence = parse_cursor(request.resume or "")
    return client.resume(execution_id, after_sequence=sequence, include_deltas=wants_deltas)


def _find_default_strategy(request: AskRequest, client: Client) -> str:
    """Return the server's default strategy; --set sets its parameters if no strategy is named."""
    known = [] if request.agent else client.list_strategies().strategies
    default = next((strategy.name for strategy in known if strategy.is_default), "")
    if not default:
        raise usage_error("--set needs --strategy, which gives the keys their meaning", "See `reasond strategies`.")
    return default


def _read_image(name: str) -> tuple[str, bytes]:
    """Return the media type, by the name, and the content of the image file `name`; the server checks both."""
    kind = mimetypes.guess_type(name)[0] or ""
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - a name that a user typed, closed at once
            return kind, file.read(MAX_IMAGE_BYTES)
    except OSError as error:
        raise usage_error(f"the file {name[:200]!r} cannot be read: {error.strerror}", "Check --image.") from None


def _read_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema in the file `name`; the server checks it."""
    try:
        schema = json.loads(_read_text(name, "--schema"))
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise usage_error(f"the schema {name[:200]!r} is no JSON object", 'Such as {"type": "object"}.')
    return schema


def _read_history(name: str) -> list[tuple[str, str]]:
    return parse_history(_read_text(name, "--history"), _name_input(name))


def parse_history(text: str, shown: str) -> list[tuple[str, str]]:
    """Parse messages with `role` and `text`, as a JSON list or one JSON object per line; `shown` names their file.

    Raises:
        CommandError: there is none, or one of them has another form.
    """
    example = 'Such as {"role": "user", "text": "I have three dogs."}; the other role is "assistant".'
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        messages = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        raise usage_error(f"{shown} is no JSON list and no JSON lines", example) from None
    if not messages:
        raise usage_error(f"{shown} has no messages", example)
    return [
        _read_message(message, f"message {number} of {shown}", example) for number, message in enumerate(messages, 1)
    ]


def _read_message(message: object, shown: str, example: str) -> tuple[str, str]:
    match message:
        case {"role": "user" | "assistant" as role, "text": str(text), **others} if not others:
            return role, text
    raise usage_error(f"{shown} is no object with a role and a text alone", example)


def _name_input(name: str) -> str:
    return "stdin" if name == _STDIN else f"the file {name[:200]!r}"


def _read_text(name: str, option: str) -> str:
    """Return the text of the file `name`, or of stdin if the name is -; `option` names it."""
    shown = _name_input(name)
    try:
        if name == _STDIN:
            content = _read_bounded(sys.stdin.buffer, shown)
        else:
            with open(name, "rb") as file:  # noqa: PTH123 - a name that a user typed, closed at once
                content = _read_bounded(file, shown)
    except OSError as error:
        raise usage_error(f"{shown} cannot be read: {error.strerror}", f"Check {option}.") from None
    if kind := find_kind(content):
        try:
            document = read_document(content, kind, shown, most_bytes=MAX_MATERIAL_BYTES)
        except UnreadableDocumentError as error:
            raise usage_error(error.message, error.remedy) from None
        for warning in document.warnings:
            warn(warning)
        return document.text
    _require_size(content, MAX_MATERIAL_BYTES, shown)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage_error(f"{shown} is not UTF-8 text (byte {error.start})", "Save it as UTF-8.") from None


def _read_bounded(file: BinaryIO, shown: str) -> bytes:
    content = file.read(MAX_MATERIAL_BYTES + 1)
    if len(content) > MAX_MATERIAL_BYTES and may_be_document(content):
        content += file.read(MAX_DOCUMENT_BYTES + 1 - len(content))
        _require_size(content, MAX_DOCUMENT_BYTES, shown)
    return content


def _require_size(content: bytes, most: int, shown: str) -> None:
    if len(content) > most:
        raise usage_error(f"{shown} has more than {most:,} bytes", "Ask about a part of it.")


def _require_utf8(text: str, what: str) -> str:
    """Return `text` if it is valid UTF-8; invalid bytes of an argument arrive as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise usage_error(f"{what} is not UTF-8 text", "Check the encoding of the terminal.") from None
    return text
