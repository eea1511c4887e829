"""Helpers for the tests of metrics: metrics with a small vocabulary, and the samples that they expose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.telemetry.catalogue import Vocabulary
from reasond_server.telemetry.meters import Meters
from reasond_server.telemetry.observers import ServerSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS = {
    "method": frozenset({"reasond.v1.ReasoningService/Reason", "reasoning.execute"}),
    "code": frozenset({"OK", "INTERNAL"}),
    "reason": frozenset(
        {"TOKEN_MISSING", "INTERNAL", "MODEL_TIMEOUT", "MODEL_UNAVAILABLE", "handed_over", "lost"}
        | {"STORE_UNAVAILABLE", "STORE_FULL"}
    ),
    "strategy": frozenset({"chain_of_thought", "bounded_context"}),
    "finish_reason": frozenset({"answered", "failed"}),
    "model": frozenset({"demo"}),
    "backend": frozenset({"llm", "main"}),
    "tool": frozenset({"calculator", "echo", "files__other", "files__read"}),
    "outcome": frozenset(
        {"ok", "stop", "MODEL_TIMEOUT", "failed", "unknown_tool", "invalid_arguments", "refused", "cancelled"}
        | {"admitted", "gone", "timeout", "draining", "resumed", "written_off"}
        | {"handed_off", "settled", "expired", "accepted", "ETAG_MISMATCH"}
        | {"timed_out", "limited", "not_run"}
    ),
    "exit": frozenset({"done", "client_tools", "failed", "cancelled", "expired"}),
    "goal": frozenset({"planning"}),
    "rendering": frozenset({"preview"}),
    "route": frozenset({"/healthz"}),
    "status": frozenset({"200"}),
}


def metrics() -> Meters:
    return Meters(vocabulary=Vocabulary(words=WORDS), version="1.2.3")


def values(counted: Meters, seen: ServerSnapshot | None = None) -> Mapping[str, float]:
    """Return every sample by its name and label values, such as `reasond_calls_total grpc Reason OK`."""
    counted.sample(seen or ServerSnapshot())
    return {
        " ".join((sample.name, *(value for _, value in sorted(sample.labels.items())))): sample.value
        for family in counted.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
