"""Metrics under the names of gRPC and of OpenTelemetry, made of ours when they are read; to count costs nothing more.

Sources: grpc/proposal A66 (all of its server metrics) and open-telemetry/semantic-conventions-genai
(gen_ai.client.operation.duration, gen_ai.client.token.usage). Prometheus has their names with underscores and the unit.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric as Family

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.samples import Sample


@value
class StandardMetric:
    """One metric of a standard: its name there, its unit, and the metric of ours that it is made of.

    `labels` gives the standard's name of each label that is kept, and `transport` bounds which series count.
    """

    name: str
    unit: str
    made_of: str
    meaning: str
    labels: Mapping[str, str]
    is_of_models: bool = False
    transport: str = ""

    @property
    def exposed_name(self) -> str:
        """The name for Prometheus, without _total, _bucket and the like."""
        return self.name.replace(".", "_") + _UNITS.get(self.unit, "")


_UNITS: Final[Mapping[str, str]] = MappingProxyType({"s": "_seconds", "By": "_bytes"})

STANDARD_METRICS: Final = (
    StandardMetric(
        name="grpc.server.call.started",
        unit="{call}",
        made_of="reasond_rpcs_started",
        meaning="RPCs that began.",
        labels={"method": "grpc_method"},
    ),
    StandardMetric(
        name="grpc.server.call.duration",
        unit="s",
        made_of="reasond_call_duration_seconds",
        meaning="Time from the arrival of an RPC to its end, by its status.",
        labels={"method": "grpc_method", "code": "grpc_status"},
        transport="grpc",
    ),
    StandardMetric(
        name="grpc.server.call.rcvd_total_compressed_message_size",
        unit="By",
        made_of="reasond_rpc_received_bytes",
        meaning="Bytes of the requests of an RPC; what a client compressed counts unpacked.",
        labels={"method": "grpc_method", "code": "grpc_status"},
    ),
    StandardMetric(
        name="grpc.server.call.sent_total_compressed_message_size",
        unit="By",
        made_of="reasond_rpc_sent_bytes",
        meaning="Bytes of the responses of an RPC; none is compressed.",
        labels={"method": "grpc_method", "code": "grpc_status"},
    ),
    StandardMetric(
        name="gen_ai.client.operation.duration",
        unit="s",
        made_of="reasond_model_call_duration_seconds",
        meaning="Time of a model call, its retries included.",
        labels={"model": "gen_ai_request_model", "outcome": "error_type"},
        is_of_models=True,
    ),
    StandardMetric(
        name="gen_ai.client.token.usage",
        unit="{token}",
        made_of="reasond_model_call_tokens",
        meaning="Tokens of a model call.",
        labels={"model": "gen_ai_request_model", "kind": "gen_ai_token_type"},
        is_of_models=True,
    ),
)
"""The metrics of the standards that this server tells."""

_MADE_OF: Final = {each.made_of: each for each in STANDARD_METRICS}
ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "grpc_method": "grpc.method",
        "grpc_status": "grpc.status",
        "gen_ai_operation_name": "gen_ai.operation.name",
        "gen_ai_provider_name": "gen_ai.provider.name",
        "gen_ai_request_model": "gen_ai.request.model",
        "gen_ai_token_type": "gen_ai.token.type",
        "error_type": "error.type",
    }
)
"""The names of attributes in OpenTelemetry by those of labels."""


def add_standard_metrics(families: Iterable[Family], *, provider: str) -> Iterator[Family]:
    """Yield `families`, each followed by the standard's metric that is made of it; `provider` answers model calls."""
    for family in families:
        yield family
        wanted = _MADE_OF.get(family.name)
        if wanted is not None:
            yield _translate(family, wanted, provider)


def _translate(family: Family, wanted: StandardMetric, provider: str) -> Family:
    made = Family(wanted.exposed_name, wanted.meaning, family.type)
    fixed = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": provider} if wanted.is_of_models else {}
    made.samples = [
        sample._replace(
            name=sample.name.replace(family.name, wanted.exposed_name, 1),
            labels=fixed | _translate_labels(sample, wanted),
        )
        for sample in family.samples
        if not wanted.transport or sample.labels.get("transport") == wanted.transport
    ]
    return made


def _translate_labels(sample: Sample, wanted: StandardMetric) -> dict[str, str]:
    """Return the labels in the standard's names; outcomes that are no error have no `error_type`."""
    kept = {name: sample.labels[ours] for ours, name in wanted.labels.items()}
    if not kept.get("error_type", "X").isupper():
        kept["error_type"] = ""
    return kept | ({"le": sample.labels["le"]} if "le" in sample.labels else {})
