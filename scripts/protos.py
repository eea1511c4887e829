"""Read the descriptor set: messages, enums and services of reasond, with the comments above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.api.field_behavior_pb2 import (  # type: ignore[import-untyped]  # shipped without py.typed
    FieldBehavior,
    field_behavior,
)
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from reasond_server.grpc_api.transcoding import HttpBinding, list_bindings

DESCRIPTORS = Path(__file__).resolve().parent.parent / "proto" / "reasond.binpb"
PACKAGE = "reasond.v1"

# Field numbers of descriptor.proto; the paths in source info consist of them.
SYNTAX, FILE_MESSAGE, FILE_ENUM, FILE_SERVICE = 12, 4, 5, 6
MESSAGE_FIELD, MESSAGE_MESSAGE, MESSAGE_ENUM, MESSAGE_ONEOF = 2, 3, 4, 8
ENUM_VALUE, SERVICE_METHOD = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Commented:
    """What has a name and a comment above it, such as a value of an enum."""

    name: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Commented):
    """A field of a message: `label` is "", "optional", "repeated" or "map"; `oneof` names its group or is "".

    `choice` is the comment of that group. `is_required` tells that a request without it is refused.
    """

    type_name: str
    label: str
    oneof: str
    choice: str
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Commented):
    """A message; the name of a nested one includes its parent's name: `AgentCard.Skill`."""

    fields: Sequence[Field]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enum(Commented):
    """An enum."""

    values: Sequence[Commented]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Commented):
    """An RPC; `request` and `response` are names of messages."""

    request: str
    response: str
    is_streaming: bool
    bindings: Sequence[HttpBinding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Commented):
    """A service with its RPCs."""

    methods: Sequence[Method]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoFile(Commented):
    """The declarations of one .proto file of the package."""

    services: Sequence[Service]
    messages: Sequence[Message]
    enums: Sequence[Enum]


class _Reader:
    """Converts one file descriptor into the values above."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments: Mapping[tuple[int, ...], str] = {
            tuple(location.path): location.leading_comments.strip()
            for location in file.source_code_info.location
            if location.leading_comments
        }

    def read(self) -> ProtoFile:
        messages = [
            entry
            for index, message in enumerate(self._file.message_type)
            for entry in self._messages(message, (FILE_MESSAGE, index), "")
        ]
        enums = [self._enum(enum, (FILE_ENUM, index), "") for index, enum in enumerate(self._file.enum_type)]
        return ProtoFile(
            name=Path(self._file.name).stem,
            comment=self._comment(SYNTAX),
            services=[self._service(service, index) for index, service in enumerate(self._file.service)],
            messages=[entry for entry in messages if isinstance(entry, Message)],
            enums=[*enums, *(entry for entry in messages if isinstance(entry, Enum))],
        )

    def _comment(self, *path: int) -> str:
        return self._comments.get(path, "")

    def _messages(self, message: DescriptorProto, path: tuple[int, ...], parent: str) -> Iterator[Message | Enum]:
        """Yield `message` and every type declared in it, except map entries, which are shown as fields."""
        if message.options.map_entry:
            return
        name = f"{parent}{message.name}"
        fields = [self._field(message, path, index) for index in range(len(message.field))]
        yield Message(name=name, comment=self._comment(*path), fields=fields)
        for index, enum in enumerate(message.enum_type):
            yield self._enum(enum, (*path, MESSAGE_ENUM, index), f"{name}.")
        for index, nested in enumerate(message.nested_type):
            yield from self._messages(nested, (*path, MESSAGE_MESSAGE, index), f"{name}.")

    def _field(self, message: DescriptorProto, path: tuple[int, ...], index: int) -> Field:
        field = message.field[index]
        in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        return Field(
            name=field.name,
            type_name=show_type(map_value(message, field) or field),
            label=label_of(message, field),
            oneof=message.oneof_decl[field.oneof_index].name if in_oneof else "",
            choice=self._comment(*path, MESSAGE_ONEOF, field.oneof_index) if in_oneof else "",
            comment=self._comment(*path, MESSAGE_FIELD, index),
            is_required=FieldBehavior.Value("REQUIRED") in field.options.Extensions[field_behavior],
        )

    def _enum(self, enum: EnumDescriptorProto, path: tuple[int, ...], parent: str) -> Enum:
        values = [
            Commented(name=value.name, comment=self._comment(*path, ENUM_VALUE, index))
            for index, value in enumerate(enum.value)
        ]
        return Enum(name=f"{parent}{enum.name}", comment=self._comment(*path), values=values)

    def _service(self, service: ServiceDescriptorProto, index: int) -> Service:
        methods = [
            Method(
                name=method.name,
                comment=self._comment(FILE_SERVICE, index, SERVICE_METHOD, number),
                request=local(method.input_type),
                response=local(method.output_type),
                is_streaming=method.server_streaming,
                bindings=list_bindings(method.options),
            )
            for number, method in enumerate(service.method)
        ]
        return Service(name=service.name, comment=self._comment(FILE_SERVICE, index), methods=methods)


def local(full_name: str) -> str:
    """Return the name of a type without the leading dot, and without the package if it is ours."""
    return full_name.removeprefix(".").removeprefix(f"{PACKAGE}.")


def map_value(message: DescriptorProto, field: FieldDescriptorProto) -> FieldDescriptorProto | None:
    """Return the value field if `field` is a map, which protoc represents as a nested message; else None."""
    name = field.type_name.rpartition(".")[2]
    entries = (nested.field[1] for nested in message.nested_type if nested.options.map_entry and nested.name == name)
    return next(entries, None)


def label_of(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Return the label of a field: how often it may occur."""
    if map_value(message, field):
        return "map"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return "repeated"
    return "optional" if field.proto3_optional else ""


def show_type(field: FieldDescriptorProto) -> str:
    """Return the field's type as .proto files write it."""
    return local(field.type_name) or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def read(path: Path = DESCRIPTORS) -> list[ProtoFile]:
    """Return our files of the descriptor set, sorted by name, without the files that they import."""
    descriptors = FileDescriptorSet.FromString(path.read_bytes())
    return sorted(
        (_Reader(file).read() for file in descriptors.file if file.package == PACKAGE), key=lambda file: file.name
    )
