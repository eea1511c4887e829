"""The same call for grpcurl, Python and curl, as shell commands."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_SERVICE = "reasond.v1.ReasoningService/Reason"
_REQUEST_ID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of a server: `grpc` as a target, `http` as a URL with its scheme (empty if HTTP is off)."""

    grpc: str
    http: str
    is_encrypted: bool = False


def exports(place: Endpoints, token: str) -> str:
    """Return the line that exports the server's gRPC target and the token for the commands below and the client."""
    tls = " REASOND_TLS=1" if place.is_encrypted else ""
    return f"export REASOND_TARGET={shlex.quote(place.grpc)} REASOND_TOKEN={shlex.quote(token)}{tls}"


def calls(query: str, place: Endpoints) -> tuple[tuple[str, str], ...]:
    """Return (program, command) for each way to ask `query`; the token is read from REASOND_TOKEN."""
    found = [
        ("reasond", f"{program('reasond')} ask {shlex.quote(query)}"),
        ("grpcurl", _grpcurl(query, place)),
        ("Python", _python(query)),
    ]
    return (*found, ("curl", _curl(query, place))) if place.http else tuple(found)


def program(name: str) -> str:
    """Return the shell word for the program beside this interpreter: its name if PATH leads to it, else its path."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and (not own.exists() or Path(found).resolve() == own.resolve()):
        return name
    if not own.exists():
        return name
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def _grpcurl(query: str, place: Endpoints) -> str:
    plain = "" if place.is_encrypted else "-plaintext "
    data = shlex.quote(json.dumps({"task": {"query": query}}, ensure_ascii=False))
    return f'grpcurl {plain}-H "authorization: Bearer $REASOND_TOKEN" -d {data} "$REASOND_TARGET" {_SERVICE}'


def _python(query: str) -> str:
    # A JSON string is also a Python string, and its double quotes need no escape within single quotes of the shell.
    code = f"from reasond import Client; print(Client.from_env().reason({json.dumps(query)}).answer)"
    return f"{program('python')} -c {shlex.quote(code)}"


def _curl(query: str, place: Endpoints) -> str:
    body = {"jsonrpc": "2.0", "id": _REQUEST_ID, "method": "reasoning.execute", "params": {"query": query}}
    return (
        f'curl -s {place.http}/api/v1/jsonrpc -H "Authorization: Bearer $REASOND_TOKEN" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
