"""The section [repair]: the policy of repairs, the sandbox that holds candidates, and the environments of checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.config.section import EnvironmentName, Section
from reasond_server.repair.search.repair_policy import RepairPolicy
from reasond_server.types.policy_sections import ChosenName, freeze
from reasond_server.types.values import value


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


Variables = Annotated[Mapping[EnvironmentName, str], AfterValidator(freeze)]


class SandboxSettings(Section):
    """What holds the code of candidates."""

    level: Literal["auto", "bwrap", "landlock", "off"] = Field(
        default="auto",
        description="What holds the code of candidates: namespaces made by bubblewrap, Landlock, or the first of them "
        "that works here; off runs no code, so only plans are possible. auto never becomes off.",
    )
    folder: str = Field(
        default="",
        max_length=4096,
        description="Folder for workspaces, on a disk with room for the snapshots that are at work; empty: the "
        "system's folder for temporary files.",
    )
    bwrap: str = Field(default="bwrap", max_length=4096, description="Program bubblewrap, by name or path.")


class RepairEnvironmentSettings(Section):
    """A folder with tools that the operator has prepared, in which checks run."""

    preset: Literal["python", "node", "go", "java", "plain"] = Field(
        default="plain", description="Variables, limits and form of results that fit a toolchain; plain sets none."
    )
    root: str = Field(
        default="",
        max_length=4096,
        description="Folder with the tools, read-only for checks: a virtual environment, a folder with node_modules, "
        "or an unpacked image; empty: the tools of the system below /usr.",
    )
    cache: str = Field(
        default="",
        max_length=4096,
        description="Folder with what the tools have compiled before, such as a GOCACHE that `go vet std` has filled; "
        "read-only for checks, each of which begins with links to it.",
    )
    cache_variable: EnvironmentName = Field(
        default="",
        description="Environment variable that names their cache to the tools; empty: that of the preset, which is "
        "GOCACHE for go and GRADLE_USER_HOME for java.",
    )
    is_image: bool = Field(default=False, description="Whether root takes the place of the whole file system.")
    variables: Variables = Field(
        default_factory=lambda: MappingProxyType({}), max_length=64, description="Environment variables of checks."
    )
    format: Literal["", "junit", "go_json", "tap", "exit_code"] = Field(
        default="", description="How checks report if they do not say it; empty: that of the preset."
    )
    description: str = Field(default="", max_length=1000, description="What is installed, for clients.")
    wall_s: float = Field(default=60.0, ge=1, le=3600, description="Most seconds of one check.")
    cpu_s: float = Field(default=60.0, ge=1, le=36_000, description="Most seconds of processor time of one check.")
    memory_mb: int = Field(
        default=0, ge=0, le=1_048_576, description="Most memory of one check in MiB; 0: 1024, for java 2048."
    )
    processes: int = Field(default=128, ge=1, le=10_000, description="Most processes of one check.")
    disk_mb: int = Field(default=256, ge=1, le=1_048_576, description="Most that one check may write, in MiB.")
    writable_sources: bool = Field(
        default=False, description="Whether checks may write the files of the project; they are copied for each then."
    )


Environments = Annotated[Mapping[ChosenName, RepairEnvironmentSettings], AfterValidator(freeze)]


@value
class RepairSettings(RepairPolicy):
    """Repairs: their policy, and where candidates run."""

    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    environments: Annotated[
        Environments,
        Field(
            max_length=64, description="Environments in which checks run, by name; clients name them and never a path."
        ),
    ] = field(default_factory=dict)
