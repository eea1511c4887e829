"""Write the rules of fields into a descriptor set as the options of protovalidate, for those who check requests by it.

The stubs of the clients are made without them, and need nothing of protovalidate
(docs/decisions/0080-rules-of-protovalidate.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import protovalidate
from google.api.field_behavior_pb2 import (  # type: ignore[import-untyped]  # shipped without py.typed
    FieldBehavior,
    field_behavior,
)
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from scripts.field_rules import list_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

PACKAGE: Final = "reasond.v1"
_NAMES: Final = {
    "minimum": "gte",
    "maximum": "lte",
    "exclusiveMinimum": "gt",
    "minLength": "min_len",
    "maxLength": "max_len",
    "maxBytes": "max_bytes",
}
# Field numbers of descriptor.proto; the paths in source info consist of them.
_MESSAGE, _ONEOF = 4, 8


def add_rules(files: FileDescriptorSet) -> FileDescriptorSet:
    """Return the set with the options in our files, which have their comments, and with the file of protovalidate.

    Files stand after those that they import.
    """
    own = [file for file in files.file if file.package == PACKAGE]
    rules = list_rules({message.name for file in own for message in file.message_type})
    imported, pool = _read_files(), DescriptorPool()
    for each in imported:
        pool.Add(each)
    for file in own:
        size = file.ByteSize()
        comments = {tuple(each.path): each.leading_comments for each in file.source_code_info.location}
        for number, message in enumerate(file.message_type):
            for field in message.field:
                found = _describe_field(field, rules.get(f"{message.name}.{field.name}", {}))
                _set_option(pool, field.options, "field", found)
            for place, oneof in enumerate(message.oneof_decl):
                is_required = "Required." in comments.get((_MESSAGE, number, _ONEOF, place), "")
                _set_option(pool, oneof.options, "oneof", {"required": True} if is_required else {})
        if file.ByteSize() > size:
            file.dependency.append(imported[-1].name)
    known = {file.name: file for file in (*imported, *files.file)}
    return FileDescriptorSet(file=known.values())


def _describe_field(field: FieldDescriptorProto, rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules of a field as JSON of FieldRules; empty if it has none."""
    found: dict[str, Any] = {}
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        items = {"items": {kind: _rename(rule["items"])}} if "items" in rule else {}
        found = {"repeated": {"max_items": rule["maxItems"], **items}} if rule else {}
    elif rule:
        found = {kind: _rename(rule)}
    is_required = FieldBehavior.Value("REQUIRED") in field.options.Extensions[field_behavior]
    return {**found, "required": True} if is_required else found


def _rename(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES[key]: bound for key, bound in rule.items()}


def _read_files() -> list[FileDescriptorProto]:
    """Return the file of protovalidate after those that it imports."""
    file = protovalidate.ViolationPb.desc().file
    return [FileDescriptorProto.FromString(each.proto.to_binary()) for each in (*file.dependencies, file)]


def _set_option(pool: DescriptorPool, options: Message, kind: str, rules: Mapping[str, Any]) -> None:
    """Set the option `buf.validate.` and `kind` of a field or oneof, if there are rules."""
    if rules:
        known = GetMessageClass(pool.FindMessageTypeByName(options.DESCRIPTOR.full_name))()
        json_format.ParseDict({f"[buf.validate.{kind}]": rules}, known, descriptor_pool=pool)
        options.MergeFromString(known.SerializeToString(deterministic=True))
