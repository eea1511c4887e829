"""Writes log records, ours and foreign ones, as JSON lines or as text for a person.

Callers log with the standard library. Both forms omit tokens, passwords and the texts of callers and models, as spans
do, and every line has the ids of the RPC or run that it belongs to.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, TextIO

from pydantic_core import PydanticSerializationError, to_json

from reasond_server.telemetry.scope import current

# Fields that may hold texts of callers or models are dropped from every record, also from those of libraries.
CONTENT_FIELDS: Final = frozenset(
    {"answer", "body", "carryover", "content", "material", "messages", "params", "prompt", "query", "response", "text"}
)
SECRET_FIELDS: Final = frozenset(
    {"api_key", "apikey", "auth_token", "authorization", "client_secret", "cookie", "password", "secret", "token"}
)
REDACTED: Final = "***"
MAX_TEXT_CHARACTERS: Final = 8192
MAX_SPAN_CHARACTERS: Final = 2048
"""Longest text of one message, argument or result in a span."""
_MAX_DEPTH: Final = 4
_MAX_ITEMS: Final = 50

_WORDS: Final = r"authorization|(?:auth|access|refresh)[_-]token|api[_-]?key|client[_-]secret|secret|password"
_SECRETS: Final = re.compile(
    r"eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){0,4}"
    # Keys in the form of OpenAI's; the password before the host of a URL.
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}"
    r"|(?P<user>://[^\s/@:\"']*:)[^\s/\"']+(?=@)"
    r"|(?i:(?P<scheme>\b(?:bearer|basic)\s+)[^\s\"',;]+)"
    rf"|(?i:(?P<field>(?<![a-z])(?:{_WORDS})[\\\"']*\s*[:=]\s*[\\\"']*)"
    r"(?!(?:bearer|basic)\s)[^\s\"',;}\\]+)"
)
Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]


def has_marks(text: str) -> bool:
    """Return whether `text` may contain a secret.

    Every text that `_SECRETS` matches contains one of these marks, and the search for them is eight times cheaper.
    """
    lowered = text.lower()
    # A chain, because a loop takes longer. Most texts lack the two single characters, which are found much faster.
    return (
        ("k" in lowered and ("key" in lowered or "sk-" in lowered))
        or ("/" in lowered and "://" in lowered)
        or "eyj" in lowered
        or "auth" in lowered
        or "basic" in lowered
        or "bearer" in lowered
        or "secret" in lowered
        or "access" in lowered
        or "refresh" in lowered
        or "password" in lowered
    )


def redact(text: str) -> str:
    """Return `text` with JSON Web Tokens, Authorization values and the like replaced by ***."""
    if not has_marks(text):
        return text
    return _SECRETS.sub(lambda found: f"{found['user'] or found['scheme'] or found['field'] or ''}{REDACTED}", text)


def shown_text(text: str) -> str:
    """Return `text` redacted, cut to MAX_TEXT_CHARACTERS, and encodable in UTF-8."""
    return redact(text[:MAX_TEXT_CHARACTERS]).encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=1024)
def is_secret(name: str) -> bool:
    """Return whether a field of this name always counts as a secret."""
    return name.lower().replace("-", "_") in SECRET_FIELDS


def shown_value(value: object, *, depth: int = 0) -> Plain:
    """Return `value` in a form that JSON can hold: nested values to a depth of 4, without content and secrets."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return shown_text(value)
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {
            shown_text(str(name)): REDACTED if is_secret(str(name)) else shown_value(inner, depth=depth + 1)
            for name, inner in list(value.items())[:_MAX_ITEMS]
            if str(name).lower() not in CONTENT_FIELDS
        }
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [shown_value(inner, depth=depth + 1) for inner in list(value)[:_MAX_ITEMS]]
    return shown_text(_show(value))


def _show(value: object) -> str:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        # In the text of a container, content and secrets could not be found.
        return "…"
    try:
        return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else repr(value)
    except Exception:  # noqa: BLE001 - a value without a working repr must not lose the line
        return f"<{type(value).__name__}>"


def shorten(text: str) -> str:
    """Return the beginning of `text` without secrets and encodable, for spans with content."""
    kept = redact(text[:MAX_SPAN_CHARACTERS]).encode("utf-8", "replace").decode()
    return f"{kept} …" if len(text) > MAX_SPAN_CHARACTERS else kept


Fields = dict[str, Any]
Scalar = str | float | bool | None

# `color_message` repeats uvicorn's message with escape sequences.
_OWN: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"})
# In a record these attributes come before those from `extra`.
_OWN_FIRST: Final = len(vars(logging.makeLogRecord({})))
_RESERVED: Final = frozenset({"time", "level", "logger", "message", "traceback"})
_HIDDEN: Final = _RESERVED | {"span_id"}
# The messages of the access log contain these fields. If a message contains another field's value, that may be chance.
_TOLD: Final = frozenset({"method", "code", "http_method", "status"})
_TO_QUOTE: Final = frozenset(" \t=\r\n\"'")
_LEVEL_WIDTH: Final = 9
_RESET, _BOLD, _DIM, _CYAN, _MAGENTA = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[35m"
_COLORS: Final = {
    "debug": "\x1b[32m\x1b[1m",
    "info": "\x1b[32m\x1b[1m",
    "warning": "\x1b[33m\x1b[1m",
    "error": "\x1b[31m\x1b[1m",
    "critical": "\x1b[31m\x1b[1m",
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVELS: Final = {level: logging.getLevelName(level).lower() for level in logging.getLevelNamesMapping().values()}
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def emit_line(log: logging.Logger, level: int, message: str, *args: object, fields: Mapping[str, Scalar]) -> None:
    """Log a line that every call writes, without looking up the line of code that logs it.

    No name in `fields` may be an attribute of a record.
    """
    if log.isEnabledFor(level):
        record = logging.getLogRecordFactory()(log.name, level, "", 0, message, args, None)
        record.__dict__.update(fields)
        log.handle(record)


class LineFormatter(logging.Formatter):
    """Writes the fields of each record with `write`."""

    def __init__(self, write: Callable[[Fields], str]) -> None:
        super().__init__()
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as one line, or as several lines for a person."""
        event = build_fields(record)
        scope = current()
        if scope is not None:
            scope.add_to(event)
        return self._write(event)


def build_json_formatter() -> LineFormatter:
    """Return a formatter that writes each record as a JSON object on one line."""
    return LineFormatter(lambda event: json_line(event).decode())


def build_human_formatter(*, has_colors: bool = False) -> LineFormatter:
    """Return a formatter for a person that shows foreign control characters as escapes."""
    return LineFormatter(partial(write_for_a_person, has_colors=has_colors))


class _QuietHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream that may have no reader any more: a line that cannot be written is dropped."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Drop `record`; printing a traceback would fail the same way."""


def configure(stream: TextIO, *, is_human: bool, level: int = logging.INFO, has_colors: bool = False) -> None:
    """Send all log records of the process only to `stream`; call this once, before the server starts."""
    handler = _QuietHandler(stream)
    handler.setFormatter(build_human_formatter(has_colors=has_colors) if is_human else build_json_formatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # The server's own access log already contains the calls.
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))
    # Both loggers belong to the package "mcp". They log a traceback with content for every invalid line of a server;
    # `tools.mcp` logs such errors with a bounded number of lines.
    for name in ("mcp", "client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
    # No line contains these, and looking them up takes a third of the time of a record ("Optimization" in logging's
    # manual).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def build_fields(record: logging.LogRecord) -> Fields:
    """Return time, level, logger, message and traceback of `record`, and the fields of `extra` that are not content."""
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 - wrong arguments must not lose the line
        message = str(record.msg)
    event: Fields = {
        "time": f"{_format_second(int(record.created))}.{int(record.created % 1 * 1000):03}Z",
        "level": _LEVELS.get(record.levelno) or record.levelname.lower(),
        "logger": record.name,
        "message": message,
    }
    for name, value in islice(record.__dict__.items(), _OWN_FIRST, None):
        if name not in _OWN and name not in CONTENT_FIELDS and name not in _RESERVED:
            event[name] = REDACTED if is_secret(name) else value
    if record.exc_info or record.exc_text:
        event["traceback"] = _format_traceback(record)
    return event


def json_line(event: Fields) -> bytes:
    """Return `event` as JSON in UTF-8, with values of any type."""
    if _PLAIN.issuperset(map(type, event.values())):
        return _write_plain(event)
    return _write_values(event)


def _write_plain(event: Fields) -> bytes:
    """Return `event` as JSON in UTF-8. If no value has a mark of a secret, the values are not redacted one by one."""
    try:
        line = to_json(event, inf_nan_mode="strings")
        # JSON does not escape letters, so a mark in a value is also in the line.
        if len(line) <= MAX_TEXT_CHARACTERS and not has_marks(line.decode()):
            return line
    except (PydanticSerializationError, UnicodeError, ValueError):
        pass
    return _write_values(event)


def _write_values(event: Fields) -> bytes:
    return to_json({name: shown_value(value) for name, value in event.items()})


def write_for_a_person(event: Fields, *, has_colors: bool = False) -> str:
    """Return a line with local time and visible control characters; a traceback stands below it.

    Fields that the message repeats, empty fields, and a trace id equal to the call id are omitted.
    """
    event = {name: shown_value(value) for name, value in event.items()}
    paint = _paint if has_colors else _leave_plain
    message = str(event["message"])
    words = message.split()
    clock = datetime.fromisoformat(str(event.pop("time"))).astimezone().strftime("%H:%M:%S")
    traceback = str(event.pop("traceback", ""))
    if event.get("trace_id") == event.get("call_id"):
        event.pop("trace_id", None)
    fields = sorted(
        (_escape(name), _escape(str(value)))
        for name, value in event.items()
        if name not in _HIDDEN and value != "" and not (name in _TOLD and str(value) in words)
    )
    level = str(event["level"])
    parts = [
        paint(clock, _DIM),
        f"[{paint(f'{level:<{_LEVEL_WIDTH}}', _COLORS.get(level, _BOLD))}]",
        paint(_escape(message), _BOLD),
        *(f"{paint(name, _CYAN)}={paint(_quote(text), _MAGENTA)}" for name, text in fields),
    ]
    below = [f"    {_escape(one)}" for one in traceback.splitlines()]
    return "\n".join([" ".join(parts).rstrip(), *below])


def _quote(text: str) -> str:
    """Return `text`, in quotation marks if it would not be read as one value."""
    return text if _TO_QUOTE.isdisjoint(text) else repr(text)


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{_RESET}"


def _leave_plain(text: str, _style: str) -> str:
    return text


@lru_cache(maxsize=2)
def _format_second(seconds: int) -> str:
    """Return a second since 1970 as text; cached because most lines have the same second as the line before."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


def _format_traceback(record: logging.LogRecord) -> str:
    """Return the end of the traceback of `record`; it is redacted before the cut, which could split a token."""
    text = record.exc_text or ""
    if record.exc_info and record.exc_info[0] is not None:
        text = logging.Formatter().formatException(record.exc_info)
    return shown_text(redact(text)[-MAX_TEXT_CHARACTERS:])


def _escape(text: str) -> str:
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
