"""RepairService over gRPC: converts requests, calls the core, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repair_service_pb2_grpc, repairs_pb2
from reasond_server.errors.base import ReasondError
from reasond_server.grpc_api.guard import get_current_principal
from reasond_server.grpc_api.message_writers import fill
from reasond_server.grpc_api.repair_conversion import (
    build_repair_event_message,
    build_snapshot_response,
    read_entries,
    read_source,
    require_repair_task,
)
from reasond_server.grpc_api.requests import prefix_fields, require_id
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.repair.service.repair_service import RepairService
    from reasond_server.telemetry.observers import CallObserver

_TASK_FIELDS: Final = frozenset(field.name for field in repairs_pb2.RepairTask.DESCRIPTOR.fields)
_FILE: Final = re.compile(r"^files(?=\[)")


class RepairServicer(repair_service_pb2_grpc.RepairServiceServicer):
    """Serves `reasond.v1.RepairService` from the core.

    A client that does not read a message within `write_timeout_s` seconds is disconnected (SLOW_CONSUMER); it can
    resume.
    """

    def __init__(
        self, *, service: RepairService, write_timeout_s: float = 30.0, observer: CallObserver = UNOBSERVED
    ) -> None:
        self._service = service
        self._streams = StreamWriter(write_timeout_s=write_timeout_s, observer=observer)

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        repair_service_pb2_grpc.add_RepairServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def Repair(self, request: pb.RepairRequest, context: Context) -> pb.RepairResponse:
        """Work a repair out and return its result."""
        del context
        task = require_repair_task(request)
        with _naming_fields():
            result = await self._service.run(get_current_principal(), task, request_id=request.request_id)
        return pb.RepairResponse(repair=fill(repairs_pb2.Repair(), result))

    async def RepairSteps(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.RepairStepsRequest, context: Context
    ) -> None:
        """Write the events of a new or an earlier repair as they come."""
        source = read_source(request)
        with _naming_fields():
            events = self._service.stream(
                get_current_principal(),
                source,
                request_id=request.request_id,
                include_deltas=request.include_deltas,
                keep_running=request.keep_running,
            )
            await self._streams.write(events, context, build_repair_event_message)

    async def GetRepair(self, request: pb.GetRepairRequest, context: Context) -> pb.GetRepairResponse:
        """Return a repair, with its result once it has ended."""
        del context
        execution_id = require_id(request.execution_id, field="execution_id")
        return fill(pb.GetRepairResponse(), await self._service.get(get_current_principal(), execution_id))

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.CreateSnapshotResponse:
        """Keep a manifest and name the contents that are missing."""
        del context
        return build_snapshot_response(
            await self._service.create_snapshot(get_current_principal(), read_entries(request))
        )

    async def UploadBlobs(self, request: pb.UploadBlobsRequest, context: Context) -> pb.UploadBlobsResponse:
        """Store contents that a snapshot misses."""
        del context
        digests = await self._service.upload_blobs(get_current_principal(), tuple(request.contents))
        return pb.UploadBlobsResponse(digests=digests)

    async def ListEnvironments(
        self, request: pb.ListEnvironmentsRequest, context: Context
    ) -> pb.ListEnvironmentsResponse:
        """List the environments of checks."""
        del request, context
        return fill(pb.ListEnvironmentsResponse(), self._service.list_environments())


@contextmanager
def _naming_fields() -> Iterator[None]:
    """Make violations name the fields of the request: `checks[0].argv` becomes `task.checks[0].argv`."""
    try:
        yield
    except ReasondError as error:
        # The files are within a message of their own.
        error.violations = tuple(replace(each, field=_FILE.sub("files.files", each.field)) for each in error.violations)
        prefix_fields(error, "task.", _TASK_FIELDS)
        raise
