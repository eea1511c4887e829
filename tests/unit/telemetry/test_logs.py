"""The fields of a log line, and the contents that it must never have."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.telemetry.logs import (
    build_human_formatter,
    build_json_formatter,
    configure,
    emit_line,
    redact,
)
from reasond_server.telemetry.propagation import parse_traceparent
from reasond_server.telemetry.scope import Scope, enter

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"


def record(message: str, *args: object, extra: dict[str, Any] | None = None, exc_info: Any = None) -> logging.LogRecord:
    return logging.getLogger("reasond.test").makeRecord(
        "reasond.test", logging.INFO, __file__, 1, message, args, exc_info, extra=extra
    )


def catch(error: Exception) -> Any:
    """Return `error` with its traceback, in the form that logging takes."""

    def fail() -> None:
        raise error

    try:
        fail()
    except Exception:  # noqa: BLE001 - any error is an example
        return sys.exc_info()


def as_json(one: logging.LogRecord) -> dict[str, Any]:
    line = build_json_formatter().format(one)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "uvicorn", "mcp", "client")]
    before = loggers[0].handlers[:], [each.level for each in loggers]
    yield
    loggers[0].handlers[:] = before[0]
    for each, level in zip(loggers, before[1], strict=True):
        each.setLevel(level)
    logging.captureWarnings(False)


def test_a_json_line_has_time_level_logger_message_and_the_fields_of_extra() -> None:
    line = as_json(record("call %s", "ended", extra={"code": "OK", "duration_ms": 1.5, "is_new": True, "none": None}))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "reasond.test",
        "message": "call ended",
        "code": "OK",
        "duration_ms": 1.5,
        "is_new": True,
        "none": None,
    }


def test_fields_cannot_replace_what_every_line_has() -> None:
    line = as_json(record("real", extra={"level": "fatal", "time": "never", "logger": "other"}))
    assert (line["level"], line["message"], line["logger"]) == ("info", "real", "reasond.test")
    assert line["time"] != "never"


def test_values_that_json_cannot_say_become_text() -> None:
    line = as_json(record("odd", extra={"ratio": float("nan"), "names": ["a"], "raw": "\ud800"}))
    assert (line["ratio"], line["names"], line["raw"]) == ("nan", ["a"], "\\ud800")


@pytest.mark.parametrize("field", ["query", "answer", "material", "prompt", "text", "carryover", "messages"])
def test_content_of_callers_and_models_is_left_out(field: str) -> None:
    assert field not in as_json(record("run", extra={field: "the secret plan", "steps": 1}))
    assert "plan" not in build_human_formatter().format(record("run", extra={field: "the secret plan"}))


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        f"token {TOKEN} refused",
        f"Authorization: Bearer {TOKEN}",
        "authorization: Bearer hunter2hunter2",
        "AUTHORIZATION=hunter2hunter2",
        '{"auth_token": "hunter2hunter2"}',
        "Basic aHVudGVyMmh1bnRlcjI=",
        "password=hunter2hunter2",
        TOKEN[: len(TOKEN) // 2],
    ],
)
def test_tokens_and_authorization_values_are_cut_out_of_messages_and_fields(text: str) -> None:
    for line in (
        build_json_formatter().format(record("%s", text, extra={"note": text})),
        build_human_formatter().format(record("%s", text, extra={"note": text})),
        redact(text),
    ):
        assert "hunter2" not in line
        assert "aHVud" not in line
        assert "eyJ" not in line
        assert "***" in line


@pytest.mark.parametrize("field", ["token", "authorization", "secret", "api_key"])
def test_fields_that_are_named_as_secrets_show_stars_whatever_they_hold(field: str) -> None:
    assert as_json(record("x", extra={field: "plain words"}))[field] == "***"


def test_ordinary_words_stay_as_they_are() -> None:
    text = "basics of tokens: whoever bears them, 3 secrets, eye exam"
    assert redact(text) == text


def test_a_traceback_is_one_field_of_the_same_line_and_redacted() -> None:
    line = as_json(record("failed", exc_info=catch(ValueError(TOKEN))))
    assert "ValueError: ***" in line["traceback"]


def test_a_human_line_stays_one_line_and_commands_no_terminal() -> None:
    line = build_human_formatter().format(record("a\nb\x1b[2J", extra={"name_of": "c\rd\x9b"}))
    assert "\\n" in line
    assert not {"\n", "\x1b", "\r", "\x9b"} & set(line)
    assert "info" in line
    assert "name_of=c" in line


def test_a_human_line_does_not_repeat_what_the_message_says() -> None:
    line = build_human_formatter().format(
        record("/Reason OK", extra={"method": "/Reason", "duration_ms": 2, "reason": ""})
    )
    assert line.endswith("/Reason OK duration_ms=2")


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("execution ended", {"subject": "execution"}),
        ("worker ready", {"subject": "ready", "pid": 1}),
        ("10 left", {"steps": 1, "method": "1"}),
        ("/Reason OK", {"subject": "OK", "reason": "Reason"}),
        ("nothing came", {"is_found": False, "error": None, "left": 0}),
    ],
)
def test_a_field_whose_value_is_in_the_message_by_chance_is_shown_to_a_person(
    message: str, fields: dict[str, object]
) -> None:
    line = build_human_formatter().format(record(message, extra=fields))
    assert line.endswith(f"{message} " + " ".join(f"{name}={value}" for name, value in sorted(fields.items())))


def test_a_human_traceback_is_indented_below() -> None:
    lines = build_human_formatter().format(record("failed", exc_info=catch(ValueError("wrong\x1b")))).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("    ") for line in lines[1:])
    assert lines[-1].endswith("ValueError: wrong\\x1b")


async def test_every_line_inside_an_rpc_has_its_ids_and_says_them_once() -> None:
    enter(scope := Scope(call_id="r-1", trace=parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01")))
    assert as_json(record("early"))["call_id"] == "r-1"
    scope.execution_id = "e-1"
    line = as_json(record("later", extra={"call_id": "own"}))
    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)
    assert (line["call_id"], line["execution_id"]) == ("own", "e-1")


def test_a_line_outside_of_rpcs_has_no_ids() -> None:
    assert not {"trace_id", "span_id", "call_id", "execution_id"} & set(as_json(record("alone")))


def test_arguments_that_do_not_fit_their_message_cost_no_line() -> None:
    assert as_json(record("%d of %d", "one"))["message"] == "%d of %d"


def test_a_line_is_cut_to_a_length_that_a_log_can_take() -> None:
    assert len(as_json(record("x" * 100_000))["message"]) == 8192


def test_seconds_and_milliseconds_are_those_of_the_record() -> None:
    one = record("now")
    one.created = 1_795_000_000.0625
    assert as_json(one)["time"] == "2026-11-18T11:06:40.062Z"


def test_colors_are_for_terminals_only() -> None:
    colored = build_human_formatter(has_colors=True).format(record("x", extra={"told": "two words"}))
    assert colored.endswith(
        "[\x1b[32m\x1b[1minfo     \x1b[0m] \x1b[1mx\x1b[0m \x1b[36mtold\x1b[0m=\x1b[35m'two words'\x1b[0m"
    )
    assert "\x1b[" not in build_human_formatter().format(record("x"))


def test_no_form_loads_what_draws_consoles() -> None:
    code = (
        "import sys, logging; from reasond_server.telemetry import logs; "
        "logs.build_json_formatter().format(logging.makeLogRecord({})); "
        "logs.build_human_formatter(has_colors=True).format(logging.makeLogRecord({})); "
        "sys.exit('rich' in sys.modules or 'structlog' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0


@pytest.mark.usefixtures("_restored_logging")
@pytest.mark.parametrize("is_human", [True, False])
def test_all_loggers_write_to_the_configured_stream_and_some_only_their_warnings(*, is_human: bool) -> None:
    stream = io.StringIO()
    configure(stream, is_human=is_human)
    logging.getLogger("reasond.any").info("kept")
    logging.getLogger("uvicorn.error").info("chatter")
    logging.getLogger("mcp.client.stdio").error("a message with its content")
    logging.getLogger("client").warning("a notification with its content")
    logging.getLogger("uvicorn.error").warning("trouble")
    logging.getLogger("reasond.any").debug("detail")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "kept" in lines[0]
    assert "trouble" in lines[1]


@pytest.mark.usefixtures("_restored_logging")
def test_a_stream_that_is_gone_loses_lines_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure(stream, is_human=False)
    stream.close()
    logging.getLogger("reasond.any").info("lost")
    assert capsys.readouterr().err == ""


def test_a_line_of_the_access_log_has_its_fields_and_no_place_in_the_code() -> None:
    written = io.StringIO()
    log, handler = logging.Logger("reasond.grpc", logging.INFO), logging.StreamHandler(written)  # noqa: LOG001 - not in the tree of loggers
    handler.setFormatter(build_json_formatter())
    log.addHandler(handler)
    emit_line(log, logging.INFO, "%s %s", "/Reason", "OK", fields={"code": "OK", "token": "x", "query": "why"})
    emit_line(log, logging.DEBUG, "not at this level", fields={})
    (line,) = written.getvalue().splitlines()
    told = json.loads(line)
    assert told.pop("time")
    assert told == {"level": "info", "logger": "reasond.grpc", "message": "/Reason OK", "code": "OK", "token": "***"}


def apart(*handlers: logging.Handler) -> logging.Logger:
    """Return a separate logger, outside the tree of loggers."""
    log = logging.Logger("reasond.told")  # noqa: LOG001 - outside the tree on purpose
    for handler in handlers:
        log.addHandler(handler)
    return log


def json_handler(stream: io.StringIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(build_json_formatter())
    return handler


def tell(**fields: Any) -> str:
    """Return what is written for a line with these fields."""
    stream = io.StringIO()
    emit_line(apart(json_handler(stream)), logging.INFO, "%s %s", "/m", "OK", fields=fields)
    return stream.getvalue()


class Records(logging.Handler):
    """Keeps the records that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def without_time(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    del found["time"]
    return found


_VALUES = st.one_of(
    st.text(),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "Ll"])),
    st.integers(),
    st.floats(),
    st.sampled_from([TOKEN, f"Bearer {TOKEN}", "api_key=abc", "\u212aey", 'pass"word: x', "x" * 10_000]),
)


@given(subject=_VALUES, reason=_VALUES)
def test_a_told_line_is_one_line_of_json_without_secrets(subject: object, reason: object) -> None:
    line = tell(subject=subject, reason=reason)
    assert without_time(line)["message"] == "/m OK"
    assert line.count("\n") == 1
    assert TOKEN not in line


def test_a_handler_beside_or_above_gets_its_record() -> None:
    stream, records = io.StringIO(), Records()
    parent, log = apart(), apart()
    log.parent = parent
    parent.addHandler(json_handler(stream))
    emit_line(log, logging.INFO, "%s", "first", fields={"subject": "ann"})
    log.addHandler(records)
    emit_line(log, logging.INFO, "%s", "second", fields={"subject": "ann"})
    log.removeHandler(records)
    parent.addHandler(records)
    emit_line(log, logging.INFO, "%s", "third", fields={"subject": "ann"})
    log.propagate = False
    emit_line(log, logging.INFO, "%s", "nobody hears", fields={})
    assert [record.getMessage() for record in records.records] == ["second", "third"]
    assert [vars(record)["subject"] for record in records.records] == ["ann", "ann"]
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["first", "second", "third"]


@pytest.mark.parametrize("where", ["logger", "handler"])
def test_filters_of_loggers_and_handlers_are_asked(where: str) -> None:
    handler = json_handler(stream := io.StringIO())
    log = apart(handler)
    (log if where == "logger" else handler).addFilter(lambda record: "ann" not in vars(record)["subject"])
    emit_line(log, logging.INFO, "m", fields={"subject": "ann"})
    emit_line(log, logging.INFO, "m", fields={"subject": "bob"})
    assert [json.loads(line)["subject"] for line in stream.getvalue().splitlines()] == ["bob"]


def test_levels_of_loggers_and_handlers_hold() -> None:
    handler = json_handler(stream := io.StringIO())
    log = apart(handler)
    handler.setLevel(logging.WARNING)
    emit_line(log, logging.INFO, "below the handler's", fields={})
    handler.setLevel(logging.DEBUG)
    # A logger caches its enabled levels, and only the tree of loggers clears that cache.
    log = apart(handler)
    log.setLevel(logging.WARNING)
    emit_line(log, logging.INFO, "below the logger's", fields={})
    emit_line(log, logging.ERROR, "above both", fields={})
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["above both"]


def test_a_formatter_and_a_record_factory_of_somebody_else_are_used() -> None:
    handler = json_handler(stream := io.StringIO())
    log = apart(handler)
    factory = logging.getLogRecordFactory()

    def marking(*args: Any, **options: Any) -> logging.LogRecord:
        record = factory(*args, **options)
        vars(record)["mark"] = "here"
        return record

    logging.setLogRecordFactory(marking)
    try:
        emit_line(log, logging.INFO, "m", fields={})
    finally:
        logging.setLogRecordFactory(factory)
    handler.setFormatter(logging.Formatter("mine: %(message)s"))
    emit_line(log, logging.INFO, "m", fields={})
    first, second = stream.getvalue().splitlines()
    assert json.loads(first)["mark"] == "here"
    assert second == "mine: m"


async def test_a_told_line_has_the_ids_of_its_rpc() -> None:
    enter(Scope(call_id="r-1", execution_id="e-1"))
    found = without_time(tell(call_id="of the line"))
    assert (found["call_id"], found["execution_id"]) == ("of the line", "e-1")


def test_a_told_line_has_the_time_of_the_day() -> None:
    before = datetime.now(UTC)
    found = datetime.fromisoformat(json.loads(tell())["time"])
    assert abs((found - before).total_seconds()) < 60


@pytest.mark.parametrize("name", ["query", "token", "level", "traceback"])
def test_a_told_field_of_a_name_that_is_left_out_is_left_out(name: str) -> None:
    line = tell(code="OK", **{name: "canary"})
    assert "canary" not in line
    assert without_time(line)["code"] == "OK"
