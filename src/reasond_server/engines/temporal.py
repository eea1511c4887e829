"""Repairs on Temporal, as the process that holds their logs sees them: one workflow each."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from temporalio.api.common.v1 import Payload
from temporalio.client import Client, TLSConfig, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.engines.packing import BATCH, PAYLOAD, pack, unpack_batch
from reasond_server.engines.workflow import MODELS, WORKFLOW, RepairWorkflow
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.repairs import EngineFailedError, EngineUnavailableError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from temporalio.converter import SerializationContext

    from reasond_server.engines.repair_worker import RepairWorker
    from reasond_server.eventlog.stored.payload_store import PayloadStore
    from reasond_server.repair.service.engine import RepairBatch, RepairOrder


ENCODING: Final = b"json/reasond-claim"
_PREFIX: Final = "repair/"


def build_workflow_id(tenant: str, execution_id: str) -> str:
    """Return the id of the workflow that works an execution out."""
    return f"{_PREFIX}{tenant}/{execution_id}"


class ClaimCheckCodec(PayloadCodec, WithSerializationContext):
    """Puts every payload of a workflow into `store` and hands its digest on, whatever its size.

    So the history of a workflow holds no text of callers, models or tools.
    """

    def __init__(self, store: PayloadStore, workflow_id: str = "") -> None:
        self._store = store
        self._tenant, _, self._execution_id = workflow_id.removeprefix(_PREFIX).rpartition("/")

    def with_context(self, context: SerializationContext) -> Self:
        """Return the codec of one workflow."""
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext) and context.workflow_id:
            return type(self)(self._store, context.workflow_id)
        return self

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Keep the payloads and return their claims.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        bodies = [payload.SerializeToString(deterministic=True) for payload in payloads]
        names = [f"{PAYLOAD}{hashlib.sha256(body).hexdigest()}" for body in bodies]
        await self._store.put(self._tenant, self._execution_id, dict(zip(names, bodies, strict=True)))
        return [
            Payload(metadata={"encoding": ENCODING}, data=json.dumps({"name": name, "size_bytes": len(body)}).encode())
            for name, body in zip(names, bodies, strict=True)
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads that claims stand for.

        Raises:
            StoreUnavailableError: the store cannot be reached.
            InternalError: the execution was deleted, or its payloads were removed.
        """
        names = [_name_in(payload) for payload in payloads]
        found = await self._store.read(self._tenant, self._execution_id, [name for name in names if name])
        if any(name and name not in found for name in names):
            raise InternalError("the payloads of an execution are gone: it has ended, or was deleted")
        return [Payload.FromString(found[name]) if name else each for name, each in zip(names, payloads, strict=True)]


def _name_in(payload: Payload) -> str:
    """Return the name in a claim; empty if it is none."""
    return str(json.loads(payload.data)["name"]) if payload.metadata.get("encoding") == ENCODING else ""


_log = logging.getLogger("reasond.engines")
_PATIENCE: Final = timedelta(seconds=5)
_POLL_S: Final = 0.2
_LOOKS_EVERY: Final = 10
_AGAIN_S: Final = 2.0
_STOP_S: Final = 1.5
_CLOSE_S: Final = 10.0
# More than a heartbeat, so that the cluster hears in time of an activity that goes on.
_THROTTLE: Final = timedelta(seconds=2)


@value
class TemporalOptions:
    """How the cluster is reached; `queue` begins the names of its queues.

    Files are paths; without TLS they are empty. `max_active_s` bounds a repair.
    """

    address: str
    namespace: str
    queue: str
    max_active_s: float
    tls: bool = False
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    api_key: str = ""


class TemporalEngine:
    """See `RepairEngine`. `payloads` hold what the cluster must not: it gets digests and sizes."""

    def __init__(self, options: TemporalOptions, payloads: PayloadStore) -> None:
        self._options = options
        self._payloads = payloads
        self._client: Client | None = None
        self._working: list[asyncio.Task[None]] = []
        self._clearing: set[asyncio.Task[None]] = set()

    async def require_reachable(self) -> None:
        """See RepairEngine."""
        await require_cluster(await self._connect(), self._options.address)

    async def work_out(self, order: RepairOrder) -> AsyncGenerator[RepairBatch, None]:
        """See RepairEngine."""
        handle = await self._begin(order)
        last, looks = "", 0
        while True:
            found = await self._payloads.list(order.tenant, order.execution_id, BATCH, after=last)
            for name, body in found.items():
                last, batch = name, unpack_batch(body)
                yield batch
                if batch.is_last:
                    return
            looks += 1
            if not found and looks % _LOOKS_EVERY == 0:
                await self._require_open(handle, order, last)
            await asyncio.sleep(_POLL_S)

    async def stop(self, order: RepairOrder) -> None:
        """See RepairEngine."""
        try:
            async with asyncio.timeout(_STOP_S):
                client = await self._connect()
                await self._handle_of(client, order).cancel(rpc_timeout=_PATIENCE)
        except Exception as error:  # noqa: BLE001 - the activities see by themselves that the execution is over
            _log.warning("a workflow was not cancelled: %s", type(error).__name__)

    def forget(self, order: RepairOrder) -> None:
        """See RepairEngine."""
        task = asyncio.create_task(self._clear(order), name=f"payloads of {order.execution_id}")
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    def begin_work(self, worker: RepairWorker, queues: Sequence[str]) -> None:
        """Let this process work on `queues`, as soon as the cluster can be reached."""
        for queue in queues:
            work = self._work_on(worker, queue)
            self._working.append(asyncio.create_task(work, name=f"worker of {queue}"))

    async def aclose(self) -> None:
        """Stop the workers; the cluster hands what they were doing to others."""
        if self._clearing:
            await asyncio.wait(self._clearing, timeout=_STOP_S)
        working, self._working = self._working, []
        for each in working:
            each.cancel()
        if working:
            # A worker lets its activities clean up, which a second cancellation would interrupt.
            await asyncio.wait(working, timeout=_CLOSE_S)
        for each in working:
            await end_task(each)

    async def _begin(self, order: RepairOrder) -> WorkflowHandle[Any, Any]:
        """Start the workflow, or return the one that was started; wait while the cluster cannot be reached."""
        while True:
            try:
                client = await self._connect()
                return await client.start_workflow(
                    WORKFLOW,
                    args=[pack(order), self._options.queue],
                    id=build_workflow_id(order.tenant, order.execution_id),
                    task_queue=f"{self._options.queue}-{MODELS}",
                    # Twice: the process with the log ends it in time; this is for a cluster without any.
                    execution_timeout=timedelta(seconds=2 * self._options.max_active_s),
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    rpc_timeout=_PATIENCE,
                )
            except WorkflowAlreadyStartedError:
                # It has ended, and what it did is in the store.
                return self._handle_of(client, order)
            except (RPCError, RuntimeError) as error:
                _log.warning("Temporal cannot be reached; tried again: %s", error)
                await asyncio.sleep(_AGAIN_S)

    def _handle_of(self, client: Client, order: RepairOrder) -> WorkflowHandle[Any, Any]:
        return client.get_workflow_handle(build_workflow_id(order.tenant, order.execution_id))

    async def _require_open(self, handle: WorkflowHandle[Any, Any], order: RepairOrder, last: str) -> None:
        """Raise an error if the workflow has closed and has left no further batch.

        Raises:
            EngineFailedError: it has.
        """
        try:
            status = (await handle.describe(rpc_timeout=_PATIENCE)).status
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                return
            status = None
        if status is WorkflowExecutionStatus.RUNNING:
            return
        if not await self._payloads.list(order.tenant, order.execution_id, BATCH, after=last):
            how = "is gone" if status is None else f"was {status.name.lower().replace('_', ' ')}"
            raise EngineFailedError(f"The workflow of the repair {how} without a result")

    async def _clear(self, order: RepairOrder) -> None:
        """Remove payloads once the workflow needs them no more; else they stay as long as their execution."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._handle_of(await self._connect(), order).result()
            await self._payloads.clear(order.tenant, order.execution_id)
        except (ReasondError, RPCError, TimeoutError, WorkflowFailureError):
            _log.warning("payloads stay until their execution is removed", extra={"execution_id": order.execution_id})

    async def _connect(self) -> Client:
        if self._client is None:
            self._client = await self._open_client(is_lazy=True)
        return self._client

    async def _open_client(self, *, is_lazy: bool) -> Client:
        return await open_client(self._options, build_converter(self._payloads), is_lazy=is_lazy)

    async def _work_on(self, worker: RepairWorker, queue: str) -> None:
        """Work on a queue until cancelled; connect again after each failure."""
        while True:
            try:
                client = await self._open_client(is_lazy=False)
                _log.info("working on a queue of Temporal", extra={"queue": f"{self._options.queue}-{queue}"})
                await Worker(
                    client,
                    task_queue=f"{self._options.queue}-{queue}",
                    workflows=[RepairWorkflow] if queue == MODELS else [],
                    activities=worker.list_activities(queue),
                    workflow_runner=build_workflow_runner(),
                    default_heartbeat_throttle_interval=_THROTTLE,
                    max_heartbeat_throttle_interval=_THROTTLE,
                ).run()
            except (RPCError, RuntimeError) as error:
                _log.warning("the worker of %s stopped and begins again: %s", queue, error)
            await asyncio.sleep(_AGAIN_S)


def build_converter(payloads: PayloadStore) -> DataConverter:
    """Return what turns values into payloads, which stay in `payloads`."""
    return replace(
        DataConverter.default,
        payload_codec=ClaimCheckCodec(payloads),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


async def open_client(
    options: TemporalOptions, converter: DataConverter = DataConverter.default, *, is_lazy: bool = True
) -> Client:
    """Return a client of the cluster; a lazy one connects with its first call."""
    return await Client.connect(
        options.address,
        namespace=options.namespace,
        data_converter=converter,
        tls=await asyncio.to_thread(_read_tls, options) if options.tls else False,
        api_key=options.api_key or None,
        lazy=is_lazy,
    )


async def require_cluster(client: Client, address: str) -> None:
    """Refuse a cluster that does not answer.

    Raises:
        EngineUnavailableError: it cannot be reached at `address`.
    """
    try:
        await client.service_client.check_health(timeout=_PATIENCE)
    except (RPCError, RuntimeError) as error:
        _log.info("Temporal cannot be reached: %s", error)
        raise EngineUnavailableError(f"Temporal cannot be reached at {address}") from None


def build_workflow_runner() -> SandboxedWorkflowRunner:
    """Return what runs workflows: the house's own modules are loaded once, not once per workflow."""
    passed = SandboxRestrictions.default.with_passthrough_modules("reasond_server", "pydantic", "pydantic_core")
    return SandboxedWorkflowRunner(restrictions=passed)


def _read_tls(options: TemporalOptions) -> TLSConfig:
    def read(path: str) -> bytes | None:
        return Path(path).read_bytes() if path else None

    return TLSConfig(
        server_root_ca_cert=read(options.tls_ca_file),
        client_cert=read(options.tls_certificate_file),
        client_private_key=read(options.tls_key_file),
    )
