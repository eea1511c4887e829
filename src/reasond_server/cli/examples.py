"""The same call for grpcurl, Python and curl, as shell commands."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reasond_server.types.values import value

_REASON = "reasond.v1.ReasoningService/Reason"
_RUN_TURN = "reasond.v1.TurnService/RunTurn"
_REQUEST_ID = 1


@value
class Endpoints:
    """The addresses of a server: `grpc` as a target, `http` as a URL with its scheme (empty if HTTP is off)."""

    grpc: str
    http: str
    is_encrypted: bool = False


def format_exports(place: Endpoints, token: str) -> str:
    """Return the line that exports the server's gRPC target and the token for the commands below and the client."""
    tls = " REASOND_TLS=1" if place.is_encrypted else ""
    return f"export REASOND_TARGET={shlex.quote(place.grpc)} REASOND_TOKEN={shlex.quote(token)}{tls}"


def list_calls(query: str, place: Endpoints) -> tuple[tuple[str, str], ...]:
    """Return (program, command) for each way to ask `query`; the token is read from REASOND_TOKEN."""
    python = f"from reasond import Client; print(Client.from_env().reason({json.dumps(query)}).answer)"
    found = [
        ("reasond", f"{find_program('reasond')} ask {shlex.quote(query)}"),
        ("grpcurl", _write_grpcurl(_REASON, {"task": {"query": query}}, place)),
        ("Python", _write_python(python)),
    ]
    return (*found, ("curl", _write_curl("reasoning.execute", {"query": query}, place))) if place.http else tuple(found)


def list_turn_calls(request: str, tool: str, result: str, place: Endpoints) -> tuple[tuple[str, str], ...]:
    """Return (program, command) for each way to run a turn with a client's tool without arguments.

    Python answers the hand-off with the text `result`; grpcurl and curl stop there.
    """
    start = {"message": request, "client_tools": [{"name": tool}]}
    python = (
        f"import reasond; tool = reasond.client_tool(name={json.dumps(tool)})(lambda: {json.dumps(result)}); "
        f"print(reasond.Client.from_env().turn({json.dumps(request)}, tools=[tool]).answer)"
    )
    found = [("grpcurl", _write_grpcurl(_RUN_TURN, {"start": start}, place)), ("Python", _write_python(python))]
    return (*found, ("curl", _write_curl("turns.start", start, place))) if place.http else tuple(found)


def find_program(name: str) -> str:
    """Return the shell word for the program beside this interpreter: its name if PATH leads to it, else its path."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and (not own.exists() or Path(found).resolve() == own.resolve()):
        return name
    if not own.exists():
        return name
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def _write_grpcurl(method: str, message: Mapping[str, Any], place: Endpoints) -> str:
    plain = "" if place.is_encrypted else "-plaintext "
    data = shlex.quote(json.dumps(message, ensure_ascii=False))
    return f'grpcurl {plain}-H "authorization: Bearer $REASOND_TOKEN" -d {data} "$REASOND_TARGET" {method}'


def _write_python(code: str) -> str:
    # A JSON string is also a Python string, and its double quotes need no escape within single quotes of the shell.
    return f"{find_program('python')} -c {shlex.quote(code)}"


def _write_curl(method: str, params: Mapping[str, Any], place: Endpoints) -> str:
    body = {"jsonrpc": "2.0", "id": _REQUEST_ID, "method": method, "params": params}
    return (
        f'curl -s {place.http}/api/v1/jsonrpc -H "Authorization: Bearer $REASOND_TOKEN" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
