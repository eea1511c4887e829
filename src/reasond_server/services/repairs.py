"""RepairService: patches and plans that are searched and checked, and the snapshots of their code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE_REPAIRS, READ_EXECUTIONS
from reasond_server.grpc_api.repair_servicer import RepairServicer
from reasond_server.http_api.http_calls import Method, Streaming
from reasond_server.http_api.json_mapping import build_kind_json, build_repair_view_json, build_snapshot_json
from reasond_server.http_api.params import ExecutionParams, NoParams
from reasond_server.http_api.repair_params import CreateSnapshotParams, RepairParams, UploadBlobsParams
from reasond_server.services.declaration import Service, ServiceDeclaration
from reasond_server.telemetry.observers import UNOBSERVED, Observer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.repair.service.repair_service import RepairService
    from reasond_server.types import Cursor, Principal, StreamEvent

DECLARATION: Final = ServiceDeclaration(
    name="reasond.v1.RepairService",
    permissions={
        "Repair": EXECUTE_REPAIRS,
        "RepairSteps": EXECUTE_REPAIRS,
        "GetRepair": READ_EXECUTIONS,
        "CreateSnapshot": EXECUTE_REPAIRS,
        "UploadBlobs": EXECUTE_REPAIRS,
        "ListEnvironments": EXECUTE_REPAIRS,
    },
    methods={
        "repair.create_snapshot": "CreateSnapshot",
        "repair.execute": "Repair",
        "repair.get": "GetRepair",
        "repair.list_environments": "ListEnvironments",
        "repair.upload_blobs": "UploadBlobs",
    },
)


def build_repair_service(
    service: RepairService, *, write_timeout_s: float = 30.0, observer: Observer = UNOBSERVED
) -> Service:
    """Return RepairService for both transports; the limit is that of `RepairServicer`."""
    servicer = RepairServicer(service=service, write_timeout_s=write_timeout_s, observer=observer)
    execute = Method(
        operation=DECLARATION.find_operation("repair.execute"),
        params=RepairParams,
        run=partial(_execute, service),
        streaming=Streaming(operation=DECLARATION.operation("RepairSteps"), open=partial(_open_stream, service)),
        read_partial=partial(_read_partial, service),
    )
    methods = {
        "repair.create_snapshot": DECLARATION.method(
            "repair.create_snapshot", CreateSnapshotParams, partial(_create, service)
        ),
        "repair.execute": execute,
        "repair.get": DECLARATION.method("repair.get", ExecutionParams, partial(_get, service)),
        "repair.list_environments": DECLARATION.method("repair.list_environments", NoParams, partial(_list, service)),
        "repair.upload_blobs": DECLARATION.method("repair.upload_blobs", UploadBlobsParams, partial(_upload, service)),
    }
    return Service(declaration=DECLARATION, register=servicer.register, methods=methods)


async def _execute(service: RepairService, caller: Principal, params: RepairParams) -> dict[str, Any]:
    params.refuse_stream_options()
    return {
        "repair": build_kind_json(await service.run(caller, params.build_task(), request_id=params.request_id or ""))
    }


def _open_stream(
    service: RepairService, caller: Principal, params: RepairParams, cursor: Cursor | None
) -> AsyncGenerator[StreamEvent, None]:
    """Return the events of the repair that `cursor` names, or of a new one."""
    return service.stream(
        caller,
        cursor or params.build_task(),
        request_id="" if cursor else params.request_id or "",
        include_deltas=params.include_deltas,
        keep_running=params.keep_running,
    )


async def _read_partial(service: RepairService, caller: Principal, execution_id: str) -> dict[str, Any]:
    """Return a failed repair, in the form in which the error of its call shows it: without what was asked for."""
    found = build_repair_view_json(await service.get(caller, execution_id))
    return {name: each for name, each in found.items() if name != "task"}


async def _get(service: RepairService, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
    return build_repair_view_json(await service.get(caller, params.execution_id))


async def _create(service: RepairService, caller: Principal, params: CreateSnapshotParams) -> dict[str, Any]:
    return build_snapshot_json(await service.create_snapshot(caller, params.build_entries()))


async def _upload(service: RepairService, caller: Principal, params: UploadBlobsParams) -> dict[str, Any]:
    return {"digests": list(await service.upload_blobs(caller, params.contents))}


async def _list(service: RepairService, _caller: Principal, _params: NoParams) -> dict[str, Any]:
    return build_kind_json(service.list_environments())
