"""What the protos call REQUIRED is what the server and protovalidate refuse when it is missing, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import protovalidate
import pytest
from google.api import field_behavior_pb2, resource_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from reasond_server.testing import running_server
from scripts.generate import RULES as DESCRIPTORS_WITH_RULES
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
RULES = descriptor_pool.DescriptorPool()
for described in FileDescriptorSet.FromString(DESCRIPTORS_WITH_RULES.read_bytes()).file:
    RULES.Add(described)
RPCS = [method for service in SERVICES.values() for method in service.methods]
COMMENTED = {
    f"{message.name}.{field.name}": field
    for file in read_files()
    for message in file.messages
    for field in message.fields
}
LIMIT_S = 120.0
KEY = "k"


def is_required(field: FieldDescriptor) -> bool:
    return field_behavior_pb2.REQUIRED in field.GetOptions().Extensions[field_behavior_pb2.field_behavior]


def comments_of(field: FieldDescriptor) -> tuple[str, str]:
    """Return the comments of a field and of the oneof that it is in."""
    found = COMMENTED[field.full_name.removeprefix("reasond.v1.")]
    return found.comment, found.choice


def find_message(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a field, or of the values of a map, if it is declared by us."""
    kind = field.message_type
    if kind is not None and is_map(field):
        kind = kind.fields_by_name["value"].message_type
    return kind if kind is not None and kind.file.package == "reasond.v1" else None


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def name_step(field: FieldDescriptor) -> str:
    """Return how the path of a violation leads into a field (AIP-193)."""
    return f"{field.name}{f'.{KEY}' if is_map(field) else '[0]' if field.is_repeated else ''}"


def step_into(message: Message, field: FieldDescriptor) -> Any:
    """Return the message in a field, or the one in its list or map, which is made."""
    part = getattr(message, field.name)
    if is_map(field):
        return part[KEY]
    if field.is_repeated:
        return part[0] if part else part.add()
    return part


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
        place = f"{path}{name_step(field)}"
        yield place
        if field.message_type is not None:
            part = step_into(message, field)
            part.SetInParent()
            yield from write_least(part, route[1:] if is_next else (), f"{place}.")
            continue
        value: Any = {field.TYPE_STRING: "x", field.TYPE_BYTES: b"x"}.get(field.type, 1)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def name_route(route: Route) -> str:
    """Return the path of a field as violations have it."""
    return ".".join([*map(name_step, route[:-1]), *(field.name for field in route[-1:])])


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


def find_invalid(request: Message) -> set[str]:
    """Return the fields that protovalidate finds wrong by the rules in the descriptor set."""
    kind = GetMessageClass(RULES.FindMessageTypeByName(request.DESCRIPTOR.full_name))
    found = protovalidate.collect_violations(kind.FromString(request.SerializeToString()))
    paths = [violation.proto.field for violation in found]
    return {".".join(map(name_element, path.elements)) for path in paths if path is not None}


def name_element(element: protovalidate.FieldPathElementPb) -> str:
    place = None if element.subscript is None else element.subscript.value
    return f"{element.field_name}{'' if place is None else f'[{place}]' if isinstance(place, int) else f'.{place}'}"


def find_part(message: Any, route: Route) -> Any:
    """Return the message that a route leads to."""
    for field in route:
        message = step_into(message, field)
    return message


def name_in_proto(field: str) -> str:
    """Return the name of a field as the proto has it: violations of cards have the names of their JSON."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", field)


def is_conditional(kind: Descriptor, path: str) -> bool:
    """Return whether the comment of a field, or of its oneof, says when it is required."""
    name, _, rest = path.partition(".")
    field = kind.fields_by_name[name.partition("[")[0]]
    inner = find_message(field)
    if rest and inner is not None:
        return is_conditional(inner, rest.removeprefix(f"{KEY}.") if is_map(field) else rest)
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
                invalid = find_invalid(request)
                if not missing == invalid == ({name_route(route)} if route and is_required(route[-1]) else set()):
                    wrong.append((rpc.name, name_route(route), sorted(missing), sorted(invalid)))

    assert not wrong, "\n".join(map(str, wrong))


async def test_a_request_without_a_choice_that_is_required_is_refused(server: Listening) -> None:
    wrong = []
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        for rpc in RPCS:
            for route in [(), *find_routes(rpc.input_type)]:
                kind = find_message(route[-1]) if route else rpc.input_type
                for oneof in () if kind is None else kind.oneofs:
                    if "Required." not in comments_of(oneof.fields[0])[1]:
                        continue
                    request = GetMessageClass(rpc.input_type)()
                    list(write_least(request, route))
                    find_part(request, route).ClearField(oneof.name)
                    path = ".".join([*map(name_step, route), oneof.name])
                    invalid = find_invalid(request)
                    if invalid != {path} or not await find_refused(channel, server.token, rpc, request):
                        wrong.append((rpc.name, path, sorted(invalid)))

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
