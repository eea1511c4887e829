"""The rules of fields are the server's own: a value at a bound is taken, the next one refused, and so by protovalidate.

Its options in the descriptor set are made of these rules, as OpenAPI is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from reasond.v1 import repairs_pb2
from scripts.field_rules import list_rules
from scripts.protos import read as read_files
from tests.contract.test_required_fields import (
    RPCS,
    find_invalid,
    find_part,
    find_refused,
    find_routes,
    name_route,
    server,
    write_least,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

    from reasond_server.assembly.app import Listening
    from tests.contract.test_required_fields import Route

__all__ = ["server"]
MESSAGES = {message.name: message for file in read_files() for message in file.messages}
RULES = list_rules(MESSAGES)
PLAN = repairs_pb2.RepairTask(description="Plan it.", plan=repairs_pb2.Plan())
WAYS: dict[str, tuple[MethodDescriptor, Route]] = {}
# A stream can be left at its first event.
for rpc in sorted(RPCS, key=lambda each: not each.server_streaming):
    for way in find_routes(rpc.input_type):
        WAYS.setdefault(way[-1].full_name.removeprefix("reasond.v1."), (rpc, way))


def list_values(rule: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Yield values at the bounds of a rule and beyond them, each with whether it is taken."""
    for key, step in (("maximum", 1), ("minimum", -1), ("maxLength", 1), ("minLength", -1)):
        if key in rule:
            for bound in (rule[key], rule[key] + step):
                yield "/" * bound if key.endswith("Length") else bound, bound == rule[key]
    if "exclusiveMinimum" in rule:
        yield rule["exclusiveMinimum"], False
    if most := rule.get("maxBytes"):
        yield from (("/" * most, True), (f"{'é' * (most // 2)}/", False))


def write_value(message: Message, route: Route, value: Any) -> None:
    """Set the field at the end of the route to the value, to a list of it, or to a list of so many things."""
    message, last = find_part(message, route[:-1]), route[-1]
    message.ClearField(last.name)
    if not last.is_repeated:
        setattr(message, last.name, value)
        return
    items = getattr(message, last.name)
    for _ in range(value if isinstance(value, int) else 1):
        if last.message_type is not None:
            items.add()
        else:
            items.append("x" if isinstance(value, int) else value)


def list_cases(name: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield path, value and whether it is taken, for each bound of a rule."""
    rule, path = RULES[name], name_route(WAYS[name][1])
    yield from ((path, *case) for case in list_values(rule))
    yield from ((f"{path}[0]", *case) for case in list_values(rule.get("items", {})))
    if most := rule.get("maxItems"):
        yield from ((path, most, True), (path, most + 1, False))


@pytest.mark.slow
async def test_a_rule_is_what_the_server_checks(server: Listening) -> None:
    wrong = []
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        for name in RULES:
            rpc, route = WAYS[name]
            for path, value, is_taken in list_cases(name):
                request: Any = GetMessageClass(rpc.input_type)()
                list(write_least(request, route))
                is_parameter = "Config" in name
                if name.startswith("RepairConfig"):
                    request.task.MergeFrom(PLAN)
                elif route[0].name in {"start", "task"} and not is_parameter:
                    # It is refused for this alone, so that nothing runs.
                    request.request_id = " "
                write_value(request, route, value)
                refused = {"protovalidate": find_invalid(request)}
                # Another parameter may forbid one that is taken.
                if not (is_parameter and is_taken):
                    refused["server"] = await find_refused(channel, server.token, rpc, request)
                for judge, fields in refused.items():
                    if bool({path, path.removesuffix("[0]")} & fields) == is_taken:
                        wrong.append((judge, path, str(value)[:9], is_taken, sorted(fields)))

    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_comment_that_names_bounds_names_the_right_ones(name: str) -> None:
    message, _, own = name.partition(".")
    [comment] = [field.comment for field in MESSAGES[message].fields if field.name == own]
    told = {float(number.replace(",", "")) for number in re.findall(r"(?:at most |\d-|to )([\d,.]*\d)", comment)}
    rule = {**RULES[name], **RULES[name].get("items", {})}
    most = {rule[key] for key in ("maxLength", "maxBytes", "maxItems", "maximum") if key in rule}
    assert not told or not most or told & most, comment
