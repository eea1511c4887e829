"""`reasond turns list|show|cancel` and `reasond sessions list|show|delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToJson

from reasond_server.cli.connecting import connect
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.terminal import write
from reasond_server.cli.turn_text import line_of_session, line_of_turn, lines_of_turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from reasond_server.cli.connecting import Way


def list_turns(session: str, *, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print the caller's turns, one per line.

    Raises:
        CommandError: the call failed, as in the other functions.
    """
    with connect(way, environ) as client:
        for turn in client.list_turns(session=session):
            write(json_line(turn) if as_json else line_of_turn(turn))
    return ExitCode.OK


def show_turn(turn_id: str, *, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print a turn."""
    with connect(way, environ) as client:
        found = client.get_turn(turn_id)
    result = found.result if found.HasField("result") else None
    write(json_line(found) if as_json else "\n".join(lines_of_turn(found.turn, result)))
    return ExitCode.OK


def cancel_turn(turn_id: str, *, way: Way, environ: Mapping[str, str]) -> ExitCode:
    """Cancel a turn and print it."""
    with connect(way, environ) as client:
        write(line_of_turn(client.cancel_turn(turn_id)))
    return ExitCode.OK


def list_sessions(*, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print the caller's sessions, one per line."""
    with connect(way, environ) as client:
        for session in client.list_sessions():
            write(json_line(session) if as_json else line_of_session(session))
    return ExitCode.OK


def show_session(session_id: str, *, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print a session."""
    with connect(way, environ) as client:
        session = client.get_session(session_id)
    write(json_line(session) if as_json else line_of_session(session))
    return ExitCode.OK


def delete_session(session_id: str, *, way: Way, environ: Mapping[str, str]) -> ExitCode:
    """Delete a session and its turns."""
    with connect(way, environ) as client:
        client.delete_session(session_id)
    return ExitCode.OK


def json_line(message: Message) -> str:
    """Return a message as one line of JSON with the field names of the protos; empty fields are printed too."""
    return MessageToJson(
        message,
        indent=None,
        ensure_ascii=False,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
