"""Settings become the engine of repairs, and what works for it in this process."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING

from reasond_server.assembly.core import build_snapshot_keeper, find_preferred_model, make_system_clock
from reasond_server.errors.base import SettingsError
from reasond_server.reasoning.audited_account import audited_account
from reasond_server.repair.service.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.assembly.stores import Stores
    from reasond_server.config import Settings
    from reasond_server.engines.repair_worker import RepairWorker
    from reasond_server.engines.temporal import TemporalEngine, TemporalOptions
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.llm.model import ChatModel
    from reasond_server.repair.service.workbench import Workshop
    from reasond_server.telemetry.observers import Observer


def build_engine(settings: Settings, stores: Stores, environ: Mapping[str, str]) -> TemporalEngine | None:
    """Return the engine of repairs; None if they are worked out in this process.

    Raises:
        SettingsError: its package is not installed, repairs are not offered, or the store does not outlive the process.
    """
    if settings.engine.repair != "temporal":
        return None
    options = _read_options(settings, environ)
    if stores.transactions is None:
        raise SettingsError(
            '[engine] repair is "temporal", but the store is in memory, where no worker finds what was done',
            remedy="Name a database in [store] url; with `reasond worker` it must be PostgreSQL.",
        )
    from reasond_server.engines.payload_store import PayloadStore  # noqa: PLC0415 - as below
    from reasond_server.engines.temporal import TemporalEngine  # noqa: PLC0415 - as below

    return TemporalEngine(options, PayloadStore(stores.transactions))


async def examine_engine(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return in words where repairs are worked out; asks a cluster whether it is there.

    Raises:
        SettingsError: its package is not installed, or repairs are not offered.
        EngineUnavailableError: it cannot be reached.
    """
    engine = settings.engine
    if engine.repair != "temporal":
        return "repairs are worked out in the server"
    options = _read_options(settings, environ)
    from reasond_server.engines.temporal import open_client, require_cluster  # noqa: PLC0415 - as below

    await require_cluster(await open_client(options), engine.address)
    return f"Temporal at {engine.address}, namespace {engine.namespace}"


def _read_options(settings: Settings, environ: Mapping[str, str]) -> TemporalOptions:
    engine = settings.engine
    if importlib.util.find_spec("temporalio") is None:
        raise SettingsError(
            '[engine] repair is "temporal", but temporalio cannot be imported',
            remedy="Install reasond-server[temporal].",
        )
    if not settings.repair.enabled:
        raise SettingsError(
            '[engine] repair is "temporal", but repairs are not offered',
            remedy="Set enabled = true in [repair], or leave the engine out.",
        )
    # Only here: the package takes 18 MB.
    from reasond_server.engines.temporal import TemporalOptions  # noqa: PLC0415 - as above

    return TemporalOptions(
        address=engine.address,
        namespace=engine.namespace,
        queue=engine.queue,
        max_active_s=settings.repair.max_active_s,
        tls=engine.tls,
        tls_ca_file=engine.tls_ca_file,
        tls_certificate_file=engine.tls_certificate_file,
        tls_key_file=engine.tls_key_file,
        api_key=environ.get(engine.api_key_env, "") if engine.api_key_env else "",
    )


def build_repair_worker(
    settings: Settings,
    stores: Stores,
    workshop: Workshop,
    *,
    model: ChatModel | None,
    backends: Mapping[str, ChatModel],
    limits: CallerLimits,
    observer: Observer,
) -> RepairWorker:
    """Return the activities of repairs; without a `model` only those that run checks.

    `model` is that of the server, `backends` are those that [repair] may name.
    """
    from reasond_server.engines.payload_store import PayloadStore  # noqa: PLC0415 - as above
    from reasond_server.engines.repair_worker import RepairWorker  # noqa: PLC0415 - as above

    preferred, clock = find_preferred_model(settings, backends), stores.time_of(make_system_clock())
    assert stores.transactions is not None  # noqa: S101 - `build_engine` has seen to it
    return RepairWorker(
        store=stores.executions,
        payloads=PayloadStore(stores.transactions),
        workbench=Workbench(
            clock=clock,
            policy=settings.repair,
            snapshots=build_snapshot_keeper(settings, clock, stores.snapshots),
            workshop=workshop,
            observer=observer,
        ),
        model=preferred or model,
        has_own_model=preferred is not None,
        account_of=partial(audited_account, limits),
        observer=observer,
    )
