"""Values as JSON, as they travel between a workflow and its activities, and where large ones are kept.

Fields that a later release added with a default may be missing or unknown, so workers of two releases can share a
repair. Names of payloads begin with what they are: `payload/` what an engine holds by its digest alone, `record/` a
completed call or check, `call/` what a model call was sent and what came back, `batch/` events for the process with the
log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter

from reasond_server.eventlog.stored.codec import decode_event, encode_event
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
from reasond_server.repair.search.activities import CandidateOrder, PatchCheck, RepairCandidate, TokenBounds
from reasond_server.repair.search.repair_run import RepairOutcome
from reasond_server.repair.service.engine import RepairBatch
from reasond_server.runs.recorded_calls import read_error, write_error_row
from reasond_server.types import NOTHING, Budget, LoggedEvent, Usage
from reasond_server.types.repairs import SandboxLevel
from reasond_server.types.values import value

PAYLOAD: Final = "payload/"
RECORD: Final = "record/"
CALL: Final = "call/"
BATCH: Final = "batch/"

ValueT = TypeVar("ValueT")
_NUMBER_WIDTH: Final = 8


@value
class ActivityRequest:
    """What an activity works on, besides the order of the repair and its baseline, and what it may spend."""

    order: CandidateOrder | None = None
    budget: Budget = Budget()
    candidate: RepairCandidate | None = None


@value
class ActivityReply:
    """What an activity returns: its result or the error, and what it cost; `lost_tokens` as in `MeteredModel`.

    `calls` are the bodies of the records of its model calls by key, if they are kept.
    """

    baseline: Baseline | None = None
    bounds: TokenBounds | None = None
    candidate: RepairCandidate | None = None
    critique: Critique | None = None
    patch: PatchCheck | None = None
    outcomes: Sequence[CheckOutcome] = ()
    worst_cost: Mapping[str, float] = field(default_factory=dict)
    level: SandboxLevel | None = None
    warnings: Sequence[str] = ()
    usage: Usage = NOTHING
    lost_tokens: int = 0
    checks: int = 0
    check_cpu_s: float = 0.0
    calls: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None


@value
class PackedBatch:
    """A `RepairBatch` whose events are as they are logged."""

    events: Sequence[str]
    usage: Usage
    checks: int
    check_cpu_s: float
    warnings: Sequence[str]
    level: SandboxLevel | None
    outcome: RepairOutcome
    is_last: bool
    error: Mapping[str, Any] | None
    calls: Mapping[str, str] = field(default_factory=dict)


def pack(what: Any) -> bytes:  # noqa: ANN401 - any value
    """Return a value as JSON."""
    return _build_adapter(what.__class__).dump_json(what)


def unpack(kind: type[ValueT], body: bytes) -> ValueT:
    """Return the `kind` that `pack` wrote."""
    found: ValueT = _build_adapter(cast("Any", kind)).validate_json(body)
    return found


def pack_batch(batch: RepairBatch, events: Sequence[LoggedEvent]) -> bytes:
    """Return a batch as JSON; `events` are its events with their times."""
    return pack(
        PackedBatch(
            events=[encode_event(each) for each in events],
            usage=batch.usage,
            checks=batch.checks,
            check_cpu_s=batch.check_cpu_s,
            warnings=batch.warnings,
            level=batch.level,
            outcome=batch.outcome,
            is_last=batch.is_last,
            error=None if batch.error is None else write_error_row(batch.error),
            calls=batch.calls,
        )
    )


def unpack_batch(body: bytes) -> RepairBatch:
    """Return the batch that `pack_batch` wrote."""
    found = unpack(PackedBatch, body)
    return RepairBatch(
        events=[decode_event(0, each).event for each in found.events],
        usage=found.usage,
        checks=found.checks,
        check_cpu_s=found.check_cpu_s,
        warnings=found.warnings,
        level=found.level,
        outcome=found.outcome,
        is_last=found.is_last,
        error=None if found.error is None else read_error(dict(found.error)),
        calls=found.calls,
    )


def number_batch(number: int) -> str:
    """Return the number of a batch, from 1, as text in whose order batches are listed."""
    return f"{number:0{_NUMBER_WIDTH}}"


@cache
def _build_adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any class
    return TypeAdapter(kind)
