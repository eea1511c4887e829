from __future__ import annotations

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]  # shipped without py.typed
    BadRequest,
    ErrorInfo,
)
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # shipped without py.typed

from scripts.generate import BANNER, DESCRIPTORS, list_committed
from scripts.pages import ROOT


def test_every_stub_says_that_it_is_generated() -> None:
    stubs = [path for path in list_committed() if path.suffix.startswith(".py")]
    assert len(stubs) > 1
    assert all((ROOT / path).read_text("utf-8").startswith(BANNER) for path in stubs)


def test_the_descriptor_set_alone_is_enough_to_write_an_error_as_json() -> None:
    # As a transcoding proxy does it, which knows no message but those of the set.
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    status = Status(code=3, message="refused")
    status.details.add().Pack(ErrorInfo(reason="INVALID_REQUEST", domain="reasond"))
    violation = BadRequest.FieldViolation(field="task.query", description="is required")
    status.details.add().Pack(BadRequest(field_violations=[violation]))
    kind = GetMessageClass(pool.FindMessageTypeByName("google.rpc.Status"))
    read = json_format.MessageToDict(kind.FromString(status.SerializeToString()), descriptor_pool=pool)
    assert [detail["@type"].rpartition(".")[2] for detail in read["details"]] == ["ErrorInfo", "BadRequest"]
    assert read["details"][1]["fieldViolations"] == [{"field": "task.query", "description": "is required"}]
