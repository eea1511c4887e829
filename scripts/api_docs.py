"""Make docs/api/ from the comments of the protos: a page per service, one for shared types, and the list of them.

The page of errors has every reason with its meaning (errors.proto), its codes and the remedy (the class of the error).

What a page says elsewhere is not said again: numbers of fields, and the value 0 of each enum, stand in the protos; the
parameters of strategies on their pages; the fields of agent cards in the protocol that they belong to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.errors.reasons import list_error_classes
from scripts.pages import cell, page, table
from scripts.protos import PACKAGE, Enum, Field, Message, Method, ProtoFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.errors.base import Reason

FOLDER = Path("docs") / "api"
TYPES = "types.md"
ERRORS = "errors.md"
JSON = "json.md"
ERROR_FILE = "errors"
CARD_FILE = "agent_card"
UNSET = "_UNSPECIFIED"
# Messages whose fields a page of its own explains: what their comment begins with, and that page.
TOLD_ELSEWHERE = (
    (re.compile(r"Configuration of `(\w+)`"), r"../strategies/\1.md"),
    (re.compile(r"Parameters of a repair;"), "../guides/configuration.md#repair"),
)
NAME_PARTS = re.compile(r"[A-Z]?[a-z]+")
EMPTY_WORDS = {"the", "its", "of", "a", "an", "is", "it", "for", "in", "as", "this"}
LABELS = {"": "{}", "optional": "{}?", "repeated": "{}[]", "map": "map of {}"}

READING = """\
A field without a type is a string. A type with `?` may be absent, which differs from its zero; one with `[]` repeats.
Each enum has a value 0 that ends with `_UNSPECIFIED` and means: not set. Where a name says all, there is no meaning
beside it. Numbers of fields are in the protos.
"""
ERROR_ENUM = "ErrorReason"
REASON_PREFIX = "ERROR_REASON_"
JSONRPC_ONLY = {"PARSE_ERROR", "INVALID_JSONRPC", "METHOD_NOT_FOUND"}

ERRORS_INTRODUCTION = """\
Every gRPC error carries `google.rpc.ErrorInfo` with the domain `reasond` and one of these reasons. JSON-RPC
carries the same word in `error.data.reason`, and the gRPC code in `error.data.grpc_code`. Fields that are wrong stand
in `google.rpc.BadRequest` and in `error.data.violations`; how long to wait stands in `google.rpc.RetryInfo` and in
`error.data.retry_after_ms`, only where waiting helps. Programs should branch on the reason: messages may change.

gRPC messages say what is wrong and what to do. So do JSON-RPC messages, except where the text column says "bare":
there the message is only what is wrong, in a fixed form, and what to do stands in `error.data.remedy`.
"""


def anchor(name: str) -> str:
    """Return the anchor that a heading made of `name` gets."""
    return name.lower().replace(".", "")


def homes(files: Sequence[ProtoFile]) -> dict[str, str]:
    """Return type name -> page#anchor for every type in `files`."""
    places = {}
    for file in files:
        for name in (*(message.name for message in file.messages), *(enum.name for enum in file.enums)):
            place = f"{page_of(file)}#{file.name}proto" if file.name == CARD_FILE else f"{page_of(file)}#{anchor(name)}"
            places[name] = ERRORS if file.name == ERROR_FILE else place
    return places


def page_of(file: ProtoFile) -> str:
    """Return the name of the page that describes the types of `file`."""
    return f"{file.name}.md" if file.services else TYPES


def link_type(name: str, where: Mapping[str, str]) -> str:
    """Return `name` as a link to its type, or as code if the type is not declared in our protos."""
    return f"[{name}]({where[name]})" if name in where else f"`{name}`"


def show_kind(field: Field, where: Mapping[str, str]) -> str:
    """Return the type of a field: `?` after one that may be absent, `[]` after one that repeats; none for a string."""
    if (field.type_name, field.label) == ("string", ""):
        return ""
    return LABELS[field.label].format(link_type(field.type_name, where))


def meaning_of(field: Field) -> str:
    """Return the comment of a field; nothing if it only repeats its name and its type."""
    names = {part.lower() for part in NAME_PARTS.findall(f"{field.name} {field.type_name}")}
    is_told = {word.lower() for word in NAME_PARTS.findall(field.comment)} - EMPTY_WORDS <= names
    return "" if is_told else cell(field.comment)


def field_rows(fields: Sequence[Field], where: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield a row for every field, and one before the first field of every group of alternatives."""
    announced = ""
    for field in fields:
        if field.oneof and field.oneof != announced:
            announced = field.oneof
            yield [f"*{field.oneof}*", "one of", cell(field.choice)]
        yield [f"{'· ' if field.oneof else ''}`{field.name}`", show_kind(field, where), meaning_of(field)]


def list_fields(message: Message, where: Mapping[str, str]) -> str:
    """Return the fields of a message in one line, with their types alone."""
    return ", ".join(f"`{field.name}` {show_kind(field, where)}" for field in message.fields)


def message_lines(message: Message, where: Mapping[str, str]) -> Iterator[str]:
    """Yield the section of a message."""
    yield from (f"### {message.name}", "", cell(message.comment), "")
    if pages := [match.expand(target) for begin, target in TOLD_ELSEWHERE if (match := begin.match(message.comment))]:
        yield f"{list_fields(message, where)}. What they mean, with ranges and defaults: [here]({pages[0]})."
    elif message.fields:
        yield from table(["field", "type", "meaning"], list(field_rows(message.fields, where)))
    else:
        yield "It has no fields."
    yield ""


def enum_lines(enum: Enum) -> Iterator[str]:
    """Yield the section of an enum."""
    yield from (f"### {enum.name}", "", cell(enum.comment), "")
    yield from table(
        ["value", "meaning"],
        [[f"`{value.name}`", cell(value.comment)] for value in enum.values if not value.name.endswith(UNSET)],
    )
    yield ""


def method_row(method: Method, where: Mapping[str, str]) -> list[str]:
    """Return the row of an RPC."""
    response = link_type(method.response, where)
    return [
        f"`{method.name}`",
        link_type(method.request, where),
        f"stream of {response}" if method.is_streaming else response,
        cell(method.comment),
    ]


def service_page(file: ProtoFile, where: Mapping[str, str]) -> str:
    """Return the page of the services in `file`."""
    lines = [cell(file.comment), ""]
    for service in file.services:
        rows = [method_row(method, where) for method in service.methods]
        lines += [f"## {PACKAGE}.{service.name}", "", cell(service.comment), ""]
        lines += [*table(["RPC", "request", "response", "what it does"], rows), ""]
    lines += ["## Messages", "", *types_of(file, where)]
    return page(
        " and ".join(service.name for service in file.services), f"proto/reasond/v1/{file.name}.proto", lines[:-1]
    )


def types_of(file: ProtoFile, where: Mapping[str, str]) -> list[str]:
    """Return the sections of all types in `file`."""
    lines = [line for message in file.messages for line in message_lines(message, where)]
    return lines + [line for enum in file.enums for line in enum_lines(enum)]


def types_page(files: Sequence[ProtoFile], where: Mapping[str, str]) -> str:
    """Return the page of the types that services share."""
    lines = [*READING.splitlines(), ""]
    # Types that every caller uses come first; the agent card is long and follows a format of another project.
    for file in sorted(files, key=lambda one: (one.name == CARD_FILE, one.name)):
        types = () if file.name == CARD_FILE else types_of(file, where)
        lines += [f"## {file.name}.proto", "", cell(file.comment), "", *types]
    return page("Shared types", "proto/reasond/v1/", lines[:-1])


def index_page(files: Sequence[ProtoFile]) -> str:
    """Return the list of the pages."""
    services = [
        f"- [{service.name}]({page_of(file)}): {cell(service.comment)}" for file in files for service in file.services
    ]
    rest = [
        f"- [Shared types]({TYPES}): tasks, executions, steps, strategies and agent cards.",
        f"- [Errors]({ERRORS}): every reason, its codes on both wires, and what to do about it.",
        f"- [The JSON result]({JSON}): the same result over JSON-RPC and HTTP.",
    ]
    introduction = [
        f"The proto package is `{PACKAGE}`. Its files stand in `proto/reasond/v1/`; `proto/reasond.binpb` is the same",
        "as a descriptor set, for tools that do not use reflection, `proto/reasond.validate.binpb` with rules of",
        "[protovalidate](../guides/own-stubs.md#checking-requests-before-they-are-sent).",
        "",
    ]
    return page("API", "proto/reasond/v1/", [*introduction, *services, *rest])


def list_meanings(files: Sequence[ProtoFile]) -> dict[str, str]:
    """Return reason -> comment of errors.proto, in its order."""
    enum = next(enum for file in files for enum in file.enums if enum.name == ERROR_ENUM)
    reasons = {value.name.removeprefix(REASON_PREFIX): value.comment for value in enum.values}
    return {reason: comment for reason, comment in reasons.items() if not f"_{reason}".endswith(UNSET)}


def error_row(reason: Reason, meaning: str) -> list[str]:
    """Return the row of one reason."""
    grpc_status = "none" if reason.name in JSONRPC_ONLY else f"`{reason.grpc_status}`"
    text = "bare" if reason.is_bare else ""
    return [f"`{reason.name}`", grpc_status, str(reason.jsonrpc_code), text, cell(meaning), cell(reason.remedy)]


def list_declared() -> list[Reason]:
    """Return the reasons that errors.py declares."""
    return [kind.declaration for kind in list_error_classes().values()]


def errors_page(files: Sequence[ProtoFile], reasons: Sequence[Reason]) -> str:
    """Return the page.

    Raises:
      KeyError: a reason is missing in errors.proto or not declared in errors.py.
    """
    by_name = {reason.name: reason for reason in reasons}
    described = list_meanings(files)
    if unknown := by_name.keys() - described.keys():
        raise KeyError(*sorted(unknown))
    cells = [error_row(by_name[name], meaning) for name, meaning in described.items()]
    head = ["reason", "gRPC", "JSON-RPC", "text", "meaning", "what to do"]
    return page("Errors", "errors.proto and errors.py", [*ERRORS_INTRODUCTION.splitlines(), "", *table(head, cells)])


def make_pages(files: Sequence[ProtoFile]) -> dict[Path, str]:
    """Return path -> content of all pages."""
    where = homes(files)
    made = {FOLDER / page_of(file): service_page(file, where) for file in files if file.services}
    made[FOLDER / TYPES] = types_page([file for file in files if not file.services and file.name != ERROR_FILE], where)
    made[FOLDER / ERRORS] = errors_page(files, list_declared())
    made[FOLDER / "README.md"] = index_page(files)
    return made
