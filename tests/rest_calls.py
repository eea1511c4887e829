"""Calls of RPCs at their addresses in REST, made from the JSON of their requests by the annotations of the protos."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from reasond_server.grpc_api.transcoding import HttpBinding, find_method, list_bindings
from reasond_server.services import DECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx

OWN = [service for service in DECLARED if service.name.startswith("reasond.")]
RPCS = {path.rpartition("/")[2]: path for service in OWN for path in service.operations}


def bindings_of(rpc: str) -> list[HttpBinding]:
    """Return the addresses of an RPC."""
    return list(list_bindings(find_method(RPCS[rpc]).GetOptions()))


def make_request(rpc: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of an RPC as the arguments of `httpx`, at its first address."""
    (binding, *_) = bindings_of(rpc)
    bound = re.findall(r"\{(\w+)\}", binding.template)
    path = binding.template
    for name in bound:
        path = path.replace(f"{{{name}}}", quote(values[name], safe=""))
    rest = {name: value for name, value in values.items() if name not in bound}
    content: dict[str, Any] = {"json": rest} if binding.takes_body else {"params": dict(flatten(rest))}
    return {"method": binding.verb, "url": path, **content}


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a query has: a field in a message has the names of both."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_events(answer: httpx.Response) -> list[Any]:
    """Return the data of the events of an answer."""
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def find_detail(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a detail of an error, without its type; empty if there is none."""
    found = (each for each in status["details"] if each["@type"] == f"type.googleapis.com/google.rpc.{kind}")
    return {name: value for name, value in next(found, {}).items() if name != "@type"}
