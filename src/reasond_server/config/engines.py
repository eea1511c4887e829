"""The section [engine]: where repairs are worked out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from reasond_server.config.section import EnvironmentName, Section


class EngineSettings(Section):
    """Where repairs are worked out."""

    repair: Literal["in_process", "temporal"] = Field(
        default="in_process",
        description="Where repairs are worked out: in the process that took the request, or by a Temporal cluster, "
        "which hands models and checks to workers (extra `temporal`; see docs/operations/temporal.md).",
    )
    address: str = Field(default="127.0.0.1:7233", max_length=255, description="host:port of the cluster's frontend.")
    namespace: str = Field(default="default", min_length=1, max_length=255, description="Namespace of the cluster.")
    queue: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)] = Field(
        default="reasond", description="How the names of the two queues begin; `-models` and `-checks` follow."
    )
    work_on: tuple[Literal["models", "checks"], ...] = Field(
        default=("models", "checks"),
        strict=False,
        max_length=2,
        description="Queues that servers work on themselves; without one, `reasond worker` has to.",
    )
    tls: bool = Field(default=False, description="Whether the cluster is reached over TLS.")
    tls_ca_file: str = Field(
        default="", max_length=4096, description="Certificates that vouch for the cluster; empty: those of the system."
    )
    tls_certificate_file: str = Field(default="", max_length=4096, description="Certificate of this client.")
    tls_key_file: str = Field(default="", max_length=4096, description="Its private key.")
    api_key_env: EnvironmentName = Field(
        default="", description="Environment variable with the API key of the cluster; empty: none is sent."
    )
