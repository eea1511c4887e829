"""Log records as JSON lines or, for a person, as text; tokens are cut out and content is left out of both."""

from __future__ import annotations

import json
import logging
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

# Fields that could hold what a caller asked or a model wrote are dropped, whoever logs them.
CONTENT_FIELDS = frozenset(
    {"answer", "body", "carryover", "content", "material", "messages", "params", "prompt", "query", "response", "text"}
)

_REDACTED = "***"
# `color_message` is uvicorn's message once more, with escape sequences.
_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"})
_SECRETS = re.compile(
    r"eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){0,4}"
    r"|(?i:(?P<scheme>\b(?:bearer|basic)\s+)[^\s\"',;]+)"
    r"|(?i:(?P<field>\b(?:authorization|auth_token|api[-_]key|secret|password)[\"']?\s*[:=]\s*[\"']?)"
    r"(?!(?:bearer|basic)\s)[^\s\"',;}]+)"
)
_SECRET_FIELDS = frozenset({"authorization", "auth_token", "token", "api_key", "secret", "password"})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MAX_TEXT_CHARACTERS = 8192


def redacted(text: str) -> str:
    """Return `text` with JSON Web Tokens, Authorization values and the like replaced by ***."""
    return _SECRETS.sub(lambda found: f"{found['scheme'] or found['field'] or ''}{_REDACTED}", text)


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, the fields of `extra`, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as one line of JSON."""
        line = {
            "time": _time_of(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(record.getMessage()),
            **{name: value for name, value in fields_of(record).items() if name not in _RESERVED},
        }
        if traceback := _traceback_of(record):
            line["traceback"] = traceback
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


class HumanFormatter(logging.Formatter):
    """One line of text per record, its fields as name=value; a traceback follows indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` for a person; no control character reaches the terminal."""
        clock = _time_of(record).astimezone().strftime("%H:%M:%S")
        message = _text(record.getMessage())
        # a field that the message says already, such as the method of a call, would only make the line longer
        fields = {name: value for name, value in fields_of(record).items() if str(value) not in message}
        line = (
            f"{clock} {record.levelname:<7} {message}{''.join(f'  {name}={value}' for name, value in fields.items())}"
        )
        line = _CONTROL.sub(_escaped, line).replace("\n", "\\n")
        traceback = _CONTROL.sub(_escaped, _traceback_of(record))
        return line + "".join(f"\n    {one}" for one in traceback.splitlines())


class _QuietHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream whose reader may be gone: a log line that cannot be written is dropped."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Drop `record`; printing a traceback would fail the same way."""


def configure(stream: TextIO, *, is_human: bool, level: int = logging.INFO) -> None:
    """Send the log records of the process to `stream`, and only there; called once, before the server starts."""
    handler = _QuietHandler(stream)
    handler.setFormatter(HumanFormatter() if is_human else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Our own access log has the calls already.
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)


def fields_of(record: logging.LogRecord) -> Mapping[str, str | int | float | bool | None]:
    """Return what `extra` added to `record`: scalars as they are, others as text, secrets and content left out."""
    return {
        name: _REDACTED if name in _SECRET_FIELDS else _scalar(value)
        for name, value in vars(record).items()
        if name not in _OWN and name not in CONTENT_FIELDS
    }


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _scalar(value: object) -> str | int | float | bool | None:
    """Return `value` as JSON can say it."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text(value if isinstance(value, str) else repr(value))


def _text(text: str) -> str:
    """Return `text` redacted, in a length that a log can take, and encodable."""
    return redacted(text[:_MAX_TEXT_CHARACTERS]).encode("utf-8", "backslashreplace").decode("utf-8")


def _traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback of `record`, empty where it has none."""
    if not record.exc_info:
        return ""
    text = logging.Formatter().formatException(record.exc_info)
    return _text(text[-_MAX_TEXT_CHARACTERS:])


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


_RESERVED = frozenset({"time", "level", "logger", "message", "traceback"})
