"""`reasond ask`: starts or resumes the stream of a run, shows its progress, and writes its answer to stdout."""

from __future__ import annotations

import contextlib
import json
import math
import mimetypes
import sys
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import MessageToJson

from reasond import Budget
from reasond_server.cli.connecting import connect
from reasond_server.cli.display import RunDisplay
from reasond_server.cli.documents import MAX_DOCUMENT_BYTES, find_kind, may_be_document, read_document
from reasond_server.cli.live import LiveConsole
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.run_text import finish_reason_of
from reasond_server.cli.terminal import human_stream, write
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import BinaryIO

    from reasond import Client, Reasoning, ReasoningStream, ReasonIterationsResponse
    from reasond_server.cli.connecting import Way

MAX_MATERIAL_BYTES: Final = 2_000_000
MAX_IMAGE_BYTES: Final = 3_500_000
_CANCEL_LIMIT_S = 5.0
_STDIN = "-"

_ENDINGS: Final[Mapping[str, tuple[ExitCode, str]]] = MappingProxyType(
    {
        "MAX_ITERATIONS": (ExitCode.OK, "the iterations ran out; the answer is what the last one was made to give"),
        "BUDGET_EXHAUSTED": (
            ExitCode.LIMIT,
            "the budget or the deadline was reached first; the answer, if any, is what there was",
        ),
        "TRUNCATED": (
            ExitCode.LIMIT,
            "the model was cut off by its length limit, or by the size of its windows; allow it more tokens",
        ),
        "CONTENT_FILTERED": (ExitCode.MODEL, "the model's provider withheld the text"),
        "CANCELLED": (ExitCode.INTERRUPTED, "the run was cancelled; the answer, if any, is what there was"),
    }
)


@value
class Question:
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


def ask(
    question: Question, *, way: Way, environ: Mapping[str, str], as_json: bool, is_verbose: bool = False
) -> ExitCode:
    """Ask `question` and show the run; return the exit code for its finish reason.

    Raises:
        CommandError: an option is wrong, or the call failed.
    """
    live = LiveConsole(human_stream(), is_verbose=is_verbose)
    viewer: _Viewer = _JsonLines() if as_json else People(live, question.query or "")
    with connect(way, environ, has_result=lambda: viewer.has_result) as client:
        stream = _stream_of(question, client, wants_deltas=viewer.wants_deltas)
        try:
            with viewer.display(), stream:
                viewer.follow(stream)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                _cancel_or_leave(client, stream, viewer, is_kept_running=question.is_kept_running)
            return ExitCode.INTERRUPTED
        finally:
            # The stream of a failed run delivers a partial result before the call raises: it is shown too.
            viewer.finish()
        return viewer.exit_code


def _cancel_or_leave(client: Client, stream: ReasoningStream, viewer: _Viewer, *, is_kept_running: bool) -> None:
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


class _Viewer(ABC):
    """Follows the events of a run and remembers its end."""

    wants_deltas = False

    def __init__(self) -> None:
        self.result: Reasoning | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for the finish reason of the run."""
        if self.result is None:
            return ExitCode.FAILURE
        return _ending_of(self.result)[0]

    @property
    def has_result(self) -> bool:
        """Whether the run has a result with content; True while its end is not known."""
        return self.result is None or self.result.metrics.usage.model_calls > 0

    def display(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which events are followed."""
        return contextlib.nullcontext()

    def follow(self, events: Iterable[ReasonIterationsResponse]) -> None:
        """Show `events` as they come."""
        for event in events:
            self.show(event)
            if event.WhichOneof("event") == "completed":
                self.result = event.completed

    @abstractmethod
    def show(self, event: ReasonIterationsResponse) -> None:
        """Show one event."""

    def finish(self) -> None:  # noqa: B027 - not every viewer has something left to show
        """Show the end of the run, if it was received."""


class _JsonLines(_Viewer):
    """For programs: writes every event as one line of JSON to stdout, with the field names of the protos.

    Fields that are 0, false or empty are printed too: the first step has the index 0, and an absence of warnings is an
    empty list.
    """

    def show(self, event: ReasonIterationsResponse) -> None:
        write(
            MessageToJson(
                event,
                indent=None,
                ensure_ascii=False,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
        )


class People(_Viewer):
    """For people: writes steps and figures to `human_stream()`, and the answer to stdout."""

    def __init__(self, live: LiveConsole, query: str = "") -> None:
        super().__init__()
        self._live = live
        self._display = RunDisplay(live, query=query)
        self.wants_deltas = live.is_live

    def display(self) -> contextlib.AbstractContextManager[None]:
        """See the base class."""
        return self._live.open()

    def show(self, event: ReasonIterationsResponse) -> None:
        """See the base class."""
        self._display.show(event)

    def finish(self) -> None:
        """Show the answer, the figures, and how the run ended."""
        if (result := self.result) is None:
            return
        if sys.stdout.isatty():
            self._display.answer(result)
        elif result.answer:
            write(result.answer)
        self._display.figures(result)
        if ending := _ending_of(result)[1]:
            warn(ending)


def _ending_of(result: Reasoning) -> tuple[ExitCode, str]:
    """Return the exit code for the finish reason of a run, and the text of a warning."""
    if result.metrics.self_consistency.is_abstained:
        return ExitCode.LIMIT, "no answer had as many votes as min_agreement asks for, so none is given"
    if result.metrics.best_of_n.is_abstained:
        return ExitCode.LIMIT, "no answer had the score that min_score asks for, so none is given"
    return _ENDINGS.get(finish_reason_of(result), (ExitCode.OK, ""))


def _stream_of(question: Question, client: Client, *, wants_deltas: bool) -> ReasoningStream:
    """Return the stream that `question` asks for."""
    if question.resume is not None:
        return _resume(question, client, wants_deltas=wants_deltas)
    if question.query is None:
        raise usage_error("there is no question", 'Write it in quotes: reasond ask "What is 7 times 6?"')
    if [question.material, question.schema, question.history].count(_STDIN) > 1:
        raise usage_error("only one of --material, --schema and --history can read stdin", "Name files for the others.")
    strategy = question.strategy or (_default_strategy(question, client) if question.settings else None)
    return client.reason_iterations(
        _utf8(question.query, "the question"),
        material=_read(question.material, "--material") if question.material is not None else "",
        strategy=strategy,
        config=dict(map(parse_setting, question.settings)) if question.settings else None,
        agent=question.agent,
        budget=None if question.max_output_tokens is None else Budget(max_output_tokens=question.max_output_tokens),
        system=_utf8(question.system, "--system"),
        history=() if question.history is None else _read_history(question.history),
        model=question.model,
        answer_schema=None if question.schema is None else _read_schema(question.schema),
        stop=[_utf8(text, "--stop") for text in question.stop],
        images=[_read_image(name) for name in question.images],
        include_deltas=wants_deltas,
        keep_running=question.is_kept_running,
    )


def _resume(question: Question, client: Client, *, wants_deltas: bool) -> ReasoningStream:
    asked = (question.query, question.material, question.model, question.schema, question.history)
    others = (question.strategy, question.settings, question.system, question.images, question.stop)
    if any(each is not None for each in (*asked, question.max_output_tokens)) or any(others):
        raise usage_error("--resume follows a run that was started before", "Leave out the question and its options.")
    execution_id, sequence = parse_cursor(question.resume or "")
    return client.resume(execution_id, after_sequence=sequence, include_deltas=wants_deltas)


def parse_cursor(text: str) -> tuple[str, int]:
    """Parse `EXECUTION[:SEQUENCE]` into the execution id and the last sequence number that was received.

    Raises:
        CommandError: `text` has another form.
    """
    execution_id, colon, sequence = text.partition(":")
    is_number = sequence.isascii() and sequence.isdecimal() and len(sequence) < len(str(2**63))
    if not execution_id or (colon and not is_number):
        raise usage_error(f"--resume {text[:80]!r} is no EXECUTION or EXECUTION:SEQUENCE", "0 replays from the start.")
    return execution_id, int(sequence or "0")


def _default_strategy(question: Question, client: Client) -> str:
    """Return the server's default strategy; --set sets its parameters if no strategy is named."""
    known = [] if question.agent else client.list_strategies().strategies
    default = next((strategy.name for strategy in known if strategy.is_default), "")
    if not default:
        raise usage_error("--set needs --strategy, which gives the keys their meaning", "See `reasond strategies`.")
    return default


def parse_setting(text: str) -> tuple[str, str | int | float | bool]:
    """Parse `key=value`; a value that is not a JSON number, string or boolean is returned as text.

    Raises:
        CommandError: the key or the `=` is missing.
    """
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise usage_error(f"--set {text[:80]!r} is no key=value", "Such as --set chunk_size=4096.")
    return key.strip(), _scalar(value)


def _scalar(text: str) -> str | int | float | bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_scalar = isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_scalar else text


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
        schema = json.loads(_read(name, "--schema"))
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise usage_error(f"the schema {name[:200]!r} is no JSON object", 'Such as {"type": "object"}.')
    return schema


def _read_history(name: str) -> list[tuple[str, str]]:
    return parse_history(_read(name, "--history"), _show_name(name))


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


def _show_name(name: str) -> str:
    return "stdin" if name == _STDIN else f"the file {name[:200]!r}"


def _read(name: str, option: str) -> str:
    """Return the text of the file `name`, or of stdin if the name is -; `option` names it."""
    shown = _show_name(name)
    try:
        if name == _STDIN:
            content = _read_bounded(sys.stdin.buffer, shown)
        else:
            with open(name, "rb") as file:  # noqa: PTH123 - a name that a user typed, closed at once
                content = _read_bounded(file, shown)
    except OSError as error:
        raise usage_error(f"{shown} cannot be read: {error.strerror}", f"Check {option}.") from None
    if kind := find_kind(content):
        return read_document(content, kind, shown, most_bytes=MAX_MATERIAL_BYTES)
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


def _utf8(text: str, what: str) -> str:
    """Return `text` if it is valid UTF-8; invalid bytes of an argument arrive as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise usage_error(f"{what} is not UTF-8 text", "Check the encoding of the terminal.") from None
    return text
