"""What the protos call REQUIRED is what the server refuses when it is missing, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import pytest
from google.api import field_behavior_pb2, resource_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from reasond_server.testing import running_server
from scripts.protos import read as read_files
from tests.contract.test_completeness import SERVICES
from tests.unit.grpc_api.parts import details_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
    from google.protobuf.message import Message

    from reasond_server.assembly.app import Listening

Route: TypeAlias = "tuple[FieldDescriptor, ...]"
POOL = descriptor_pool.Default()
RPCS = [method for service in SERVICES.values() for method in service.methods]
COMMENTED = {
    f"{message.name}.{field.name}": field
    for file in read_files()
    for message in file.messages
    for field in message.fields
}
LIMIT_S = 120.0


def is_required(field: FieldDescriptor) -> bool:
    return field_behavior_pb2.REQUIRED in field.GetOptions().Extensions[field_behavior_pb2.field_behavior]


def comments_of(field: FieldDescriptor) -> tuple[str, str]:
    """Return the comments of a field and of the oneof that it is in."""
    found = COMMENTED[field.full_name.removeprefix("reasond.v1.")]
    return found.comment, found.choice


def find_message(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a field, if it is declared by us; maps are left out."""
    kind = field.message_type
    is_ours = kind is not None and kind.file.package == "reasond.v1" and not kind.GetOptions().map_entry
    return kind if is_ours else None


def find_routes(kind: Descriptor, seen: Sequence[str] = ()) -> Iterator[Route]:
    """Yield the way to each field of a request, once for each message that it may be in."""
    for field in kind.fields:
        yield (field,)
        inner = find_message(field)
        if inner is not None and inner.full_name not in seen:
            yield from ((field, *rest) for rest in find_routes(inner, (*seen, inner.full_name)))


def write_least(message: Message, route: Route, path: str = "") -> Iterator[str]:
    """Write what is required, and what the route leads through, but not its end; yield the paths of what is written."""
    kind, following = message.DESCRIPTOR, route[0].full_name if route else ""
    fields: list[Any] = list(kind.fields)
    wanted = {field.name: field for field in fields if is_required(field) or field.full_name == following}
    for oneof in kind.oneofs:
        choices: list[Any] = list(oneof.fields)
        own = [field for field in choices if field.full_name == following]
        if "Required." in comments_of(choices[0])[1]:
            wanted |= {field.name: field for field in own or choices[:1]}
    for field in wanted.values():
        is_next = field.full_name == following
        if is_next and len(route) == 1 and is_required(field):
            continue
        place = f"{path}{field.name}{'[0]' if field.is_repeated else ''}"
        yield place
        if field.message_type is not None:
            part = getattr(message, field.name)
            part = part.add() if field.is_repeated else part
            part.SetInParent()
            yield from write_least(part, route[1:] if is_next else (), f"{place}.")
            continue
        value: Any = {field.TYPE_STRING: "x", field.TYPE_BYTES: b"x"}.get(field.type, 1)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def name_route(route: Route) -> str:
    """Return the path of a field as violations have it (AIP-193)."""
    return ".".join(
        f"{field.name}{'[0]' if field.is_repeated and each + 1 < len(route) else ''}"
        for each, field in enumerate(route)
    )


@pytest.fixture
async def server() -> AsyncGenerator[Listening, None]:
    async with running_server(environ={"REASOND__REPAIR__ENABLED": "true"}) as listening:
        yield listening


async def find_refused(channel: Any, token: str, rpc: MethodDescriptor, request: Message) -> set[str]:
    """Call an RPC and return the fields that it finds wrong."""
    make = channel.unary_stream if rpc.server_streaming else channel.unary_unary
    call = make(
        f"/{rpc.containing_service.full_name}/{rpc.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(rpc.output_type).FromString,
    )(request, metadata=[("authorization", f"Bearer {token}")], timeout=LIMIT_S)
    try:
        if rpc.server_streaming:
            async for _ in call:
                break
        else:
            await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            return set()
        status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads an error like a call
        return {each.field for each in details_of(status)["BadRequest"].field_violations}
    return set()


def name_in_proto(field: str) -> str:
    """Return the name of a field as the proto has it: violations of cards have the names of their JSON."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", field)


def is_conditional(kind: Descriptor, path: str) -> bool:
    """Return whether the comment of a field, or of its oneof, says when it is required."""
    name, _, rest = path.partition(".")
    field = kind.fields_by_name[name.partition("[")[0]]
    if rest and field.message_type is not None:
        return is_conditional(field.message_type, rest)
    return re.search("Required(,| for)", " ".join(comments_of(field))) is not None


async def test_what_is_required_is_refused_when_it_is_missing_and_nothing_else_is(server: Listening) -> None:
    wrong = []
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        for rpc in RPCS:
            for route in [(), *find_routes(rpc.input_type)]:
                if route and not is_required(route[-1]) and find_message(route[-1]) is None:
                    continue
                request = GetMessageClass(rpc.input_type)()
                written = {*write_least(request, route)}
                refused = {name_in_proto(field) for field in await find_refused(channel, server.token, rpc, request)}
                known = {field for field in refused if any(each.startswith(field) for each in written)}
                missing = {field for field in refused - known if not is_conditional(rpc.input_type, field)}
                if missing != ({name_route(route)} if route and is_required(route[-1]) else set()):
                    wrong.append((rpc.name, name_route(route), sorted(missing)))

    assert not wrong, "\n".join(map(str, wrong))


def test_comments_and_resources_agree_with_the_annotations() -> None:
    """`Required.` stands where REQUIRED does, and the id of a resource refers to it in every request."""
    ids: dict[str, str] = {}
    fields: dict[str, FieldDescriptor] = {}
    for name in COMMENTED:
        message, _, field = f"reasond.v1.{name}".rpartition(".")
        kind = POOL.FindMessageTypeByName(message)
        fields[name] = kind.fields_by_name[field]
        resource = kind.GetOptions().Extensions[resource_pb2.resource]
        if resource.name_field == field:
            ids[field] = resource.type
    assert ids.keys() == {"agent_id", "execution_id", "session_id", "snapshot_id", "turn_id"}
    asked = {each.full_name for rpc in RPCS for route in find_routes(rpc.input_type) for each in route}
    for name, described in fields.items():
        options = described.GetOptions().Extensions
        assert ("Required." in COMMENTED[name].comment) == is_required(described), name
        if described.name in ids and described.full_name in asked:
            assert options[resource_pb2.resource_reference].type == ids[described.name], name
