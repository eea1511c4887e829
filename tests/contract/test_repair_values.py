"""Every event and result of a repair has every value, and the same one, over both wires."""

from __future__ import annotations

import json
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repairs_pb2
from reasond_server.grpc_api.message_writers import fill
from reasond_server.grpc_api.repair_servicer import (
    build_repair_event_message,
    build_repair_view_response,
    build_snapshot_response,
)
from reasond_server.http_api.json_mapping import (
    build_event_json,
    build_kind_json,
    build_repair_view_json,
    build_snapshot_json,
    name_event,
    timestamp,
)
from reasond_server.types.kinds import EVENTS
from tests.unit.repair.scripted import DELTA, ENVIRONMENTS, HAPPENINGS, REPAIR, SNAPSHOT, STAMP, VIEW, repair_event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message


def in_words(message: Message, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a message by their place in JSON: words for enumerations, milliseconds for durations."""
    for field in message.DESCRIPTOR.fields:
        at, value = f"{place}.{field.name}".removeprefix("."), getattr(message, field.name)
        if field.is_repeated:
            for number, each in enumerate(value):
                yield from in_words(each, f"{at}[{number}]") if field.message_type else [(f"{at}[{number}]", each)]
        elif isinstance(value, Duration):
            yield f"{at}_ms", value.ToMilliseconds()
        elif isinstance(value, Timestamp):
            yield at, timestamp(value.ToDatetime(tzinfo=UTC))
        elif field.message_type:
            yield from in_words(value, at)
        elif field.enum_type:
            prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
            word = field.enum_type.values_by_number[value].name.removeprefix(prefix)
            yield at, word if field.name == "reason" else word.lower()
        elif field.name.endswith("_json"):
            yield from in_leaves(json.loads(value), at.removesuffix("_json"))
        else:
            yield at, value


def in_leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values within JSON by their place."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from in_leaves(each, f"{place}.{name}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from in_leaves(each, f"{place}[{number}]")
    else:
        yield place, value


def agree(message: Message, shown: dict[str, Any]) -> None:
    """Fail unless both have the same values at the same places, and none is missing or a default."""
    told, said = dict(in_words(message)), dict(in_leaves(shown))
    assert told == said
    assert all(value not in {0, "", "unspecified"} for value in told.values()), told


def test_the_values_of_this_test_are_all_events_of_a_repair() -> None:
    names = {field.name for field in pb.RepairStepsResponse.DESCRIPTOR.oneofs_by_name["event"].fields}
    kinds = [EVENTS.kinds[type(each)] for each in (*HAPPENINGS, DELTA)]
    assert [kind.wire_tag for kind in kinds if not kind.is_logged] == ["delta"]
    assert {kind.wire_tag for kind in kinds} == names - {"heartbeat"}


@pytest.mark.parametrize("happening", [*HAPPENINGS, DELTA], ids=lambda one: type(one).__name__)
def test_an_event_has_every_value_over_both_wires(happening: Any) -> None:
    event = repair_event(7, happening)
    message, shown = build_repair_event_message(event), build_event_json(event)
    assert message.WhichOneof("event") == name_event(event)
    assert (message.execution_id, message.sequence) == ("repair-1", 7)
    assert (shown["execution_id"], shown["sequence"], shown["create_time"]) == ("repair-1", 7, STAMP)
    agree(getattr(message, name_event(event)), shown[name_event(event)])


def test_a_result_has_every_value_over_both_wires() -> None:
    agree(fill(repairs_pb2.Repair(), REPAIR), build_kind_json(REPAIR))
    agree(build_repair_view_response(VIEW).repair, build_repair_view_json(VIEW)["repair"])
    agree(fill(pb.ListEnvironmentsResponse(), ENVIRONMENTS), build_kind_json(ENVIRONMENTS))
    agree(build_snapshot_response(SNAPSHOT), build_snapshot_json(SNAPSHOT))


def test_a_repair_that_runs_has_no_result_yet() -> None:
    running = type(VIEW)(execution=VIEW.execution)
    assert not build_repair_view_response(running).HasField("repair")
    assert build_repair_view_json(running)["repair"] is None
