"""Make the description of the REST addresses by OpenAPI 3.1 from the protos: their annotations, types and comments.

The server has it in its package, and serves it at /openapi.json. What is the same for all RPCs stands in openapi.toml.
"""

from __future__ import annotations

import json
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scripts.field_rules import list_rules
from scripts.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.grpc_api.transcoding import HttpBinding
    from scripts.protos import Enum, Field, Method, ProtoFile

PATH: Final = Path("src") / "reasond_server" / "http_api" / "openapi.json"
STATUS: Final = "google.rpc.Status"
_DECLARED: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SCALARS: Final[Mapping[str, dict[str, Any]]] = _DECLARED["scalars"]
_LEFT_OUT_OF_ANSWERS: Final = {"AgentCard.supported_interfaces"}
_LAST_EVENT_ID: Final = _DECLARED["last_event_id"]
_IN_PATH: Final = re.compile(r"\{(\w+)\}")


class _Document:
    """Describes the RPCs of `files`."""

    def __init__(self, files: Sequence[ProtoFile]) -> None:
        self._services = [service for file in files for service in file.services]
        self._messages = {message.name: message for file in files for message in file.messages}
        self._enums = {enum.name: enum for file in files for enum in file.enums}
        self._rules = list_rules(self._messages)
        methods = [method for service in self._services for method in service.methods if method.bindings]
        requests = {method.request for method in methods}
        whole = {method.request for method in methods if any(map(_is_in_body, method.bindings))}
        self._used = self._reach(requests | {method.response for method in methods}) - (requests - whole)

    def build(self, version: str) -> dict[str, Any]:
        """Return the document."""
        paths: dict[str, dict[str, Any]] = {}
        for service in self._services:
            for method in service.methods:
                for number, binding in enumerate(method.bindings, start=1):
                    operation = self._describe_operation(service.name, method, binding, number)
                    paths.setdefault(binding.template, {})[binding.verb.lower()] = operation
        schemas = {name: self._describe_type(name) for name in sorted(self._used)}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "reasond",
                "version": version,
                "description": "A reasoning server: strategies over any language model, each step streamed.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "security": [{"bearer": []}],
            "tags": [{"name": each.name, "description": _join(each.comment)} for each in self._services],
            "paths": dict(sorted(paths.items())),
            "components": {
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "schemas": {**schemas, STATUS: _DECLARED["status"]},
            },
        }

    def _reach(self, names: set[str]) -> set[str]:
        """Return the types that are named, and all that are in them."""
        known: set[str] = set()
        while names:
            known |= names
            inner = chain.from_iterable(self._messages[name].fields for name in names if name in self._messages)
            names = {field.type_name for field in inner if field.type_name not in _SCALARS} - known
        return known

    def _describe_operation(self, service: str, method: Method, binding: HttpBinding, number: int) -> dict[str, Any]:
        bound = _IN_PATH.findall(binding.template)
        owner = method.request
        fields = self._messages[owner].fields
        rest = [field for field in fields if field.name not in bound]
        about = {field.name: field for field in fields}
        parameters = [
            {"in": "path", "required": True, **self._describe_parameter(name, about[name], owner)} for name in bound
        ]
        operation: dict[str, Any] = {
            "operationId": f"{method.name[0].lower()}{method.name[1:]}{number if number > 1 else ''}",
            "tags": [service],
            "description": _join(method.comment),
        }
        if binding.takes_body:
            # Generators name a schema that has no name of its own by its title.
            partly = {"title": f"{method.name}Body", **self._describe_fields(owner, rest)}
            whole = _refer(owner) if _is_in_body(binding) else partly
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": whole}}}
        else:
            parameters += [{"in": "query", **self._describe_parameter(*each)} for each in self._flatten(rest, owner)]
        if method.is_streaming:
            parameters.append(_LAST_EVENT_ID)
        if parameters:
            operation["parameters"] = parameters
        failure = {"description": "An error.", "content": {"application/json": {"schema": _refer(STATUS)}}}
        return {**operation, "responses": {"200": self._describe_answer(method), "default": failure}}

    def _describe_answer(self, method: Method) -> dict[str, Any]:
        if not method.is_streaming:
            return {"description": "The answer.", "content": {"application/json": {"schema": _refer(method.response)}}}
        text = f"Server-sent events, each with a {method.response} as data; an event `error` has a {STATUS}."
        return {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}

    def _describe_parameter(self, name: str, field: Field, owner: str) -> dict[str, Any]:
        return {"name": name, "description": _join(field.comment), "schema": self._describe_field(field, owner)}

    def _flatten(self, fields: Sequence[Field], owner: str, prefix: str = "") -> Iterator[tuple[str, Field, str]]:
        """Yield the fields with their names in a query, where one in a message has the names of both, and messages."""
        for field in fields:
            inner = self._messages.get(field.type_name)
            if inner is None:
                yield f"{prefix}{field.name}", field, owner
            else:
                yield from self._flatten(inner.fields, inner.name, f"{prefix}{field.name}.")

    def _describe_type(self, name: str) -> dict[str, Any]:
        if name in self._messages:
            return self._describe_fields(name, self._messages[name].fields)
        return _describe_enum(self._enums[name])

    def _describe_fields(self, name: str, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the schema of the message `name` with these fields.

        What a request must have is in every answer, too: JSON of protos leaves out what is zero, and this is not.
        Only the card that the server makes of a small one names no interface.
        """
        schema: dict[str, Any] = {
            "type": "object",
            "description": _join(self._messages[name].comment),
            "properties": {
                field.name: {**self._describe_field(field, name), "description": _describe_choice(field)}
                for field in fields
            },
        }
        needed = [
            field.name
            for field in fields
            if field.is_required and not field.oneof and f"{name}.{field.name}" not in _LEFT_OUT_OF_ANSWERS
        ]
        return {**schema, "required": needed} if needed else schema

    def _describe_field(self, field: Field, owner: str) -> dict[str, Any]:
        one = _SCALARS.get(field.type_name) or _refer(field.type_name)
        found = self._rules.get(f"{owner}.{field.name}", {}) if one is not _SCALARS["int64"] else {}
        # A character is at least one byte.
        rule = {key.replace("maxBytes", "maxLength"): bound for key, bound in found.items()}
        if field.label == "map":
            return {"type": "object", "additionalProperties": one}
        if field.label == "repeated":
            return {"type": "array", **rule, "items": {**one, **rule.get("items", {})}}
        return {**one, **rule}


def _is_in_body(binding: HttpBinding) -> bool:
    """Return whether the body is the request, without a field in the path."""
    return binding.takes_body and not _IN_PATH.search(binding.template)


def _describe_enum(enum: Enum) -> dict[str, Any]:
    meanings = "".join(f"\n- {value.name}: {_join(value.comment)}" for value in enum.values)
    names = [value.name for value in enum.values]
    return {"type": "string", "description": f"{_join(enum.comment)}\n{meanings}", "enum": names}


def _describe_choice(field: Field) -> str:
    text = _join(field.comment)
    return f"{text} At most one of the fields of `{field.oneof}` is set." if field.oneof else text


def _refer(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _join(comment: str) -> str:
    return " ".join(comment.split())


def make_pages(files: Sequence[ProtoFile]) -> dict[Path, str]:
    """Return path -> content of the description."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return {PATH: f"{json.dumps(_Document(files).build(version), indent=1, ensure_ascii=False)}\n"}
