"""The section [repair]: candidates that are really run, the sandbox that holds them, and the environments of checks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.config.section import EnvironmentName, Section, freeze

_KIBI = 1024
_MEBI = 1024 * _KIBI
_DAY_S = 86_400

RepairName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Command = Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64, strict=False)]
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


Environments = Annotated[Mapping[RepairName, RepairEnvironmentSettings], AfterValidator(freeze)]
Commands = Annotated[Mapping[RepairName, Command], AfterValidator(freeze)]


class RepairSettings(Section):
    """Repairs: candidates, critics that run them, and the patch."""

    enabled: bool = Field(default=False, description="Whether repairs are offered.")
    model_preference: tuple[Annotated[str, StringConstraints(max_length=64)], ...] = Field(
        default=(),
        strict=False,
        max_length=16,
        description="Backends of [llm.backends] in the order of preference; the next one is asked only after errors "
        "that spent nothing. Empty: the model of [llm].",
    )
    search: Literal["refine_beam", "lats", "greedy", "best_of_n"] = Field(
        default="refine_beam", description="How candidates are searched; see docs/guides/repair.md."
    )
    num_candidates: int = Field(default=5, ge=1, le=10, description="Candidates of one round.")
    max_reflection_depth: int = Field(
        default=3, ge=1, le=10, description="Largest depth of a candidate; those made from the original have 1."
    )
    critique_threshold: float = Field(
        default=85.0,
        ge=0,
        le=100,
        description="Score from which a candidate that passes every check ends the search, 0-100.",
    )
    beam_width: int = Field(default=2, ge=1, le=10, description="Candidates that the next round refines.")
    patience: int = Field(
        default=8, ge=1, le=1000, description="Expansions without a new behaviour after which the search ends."
    )
    temperature: float = Field(default=0.2, ge=0, le=2, description="Sampling temperature of a round's first sample.")
    spread_temperature: float = Field(default=0.8, ge=0, le=2, description="Sampling temperature of the others.")
    top_p: float = Field(default=0.9, gt=0, le=1, description="Nucleus sampling, above 0 and at most 1.")
    min_improvement_delta: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="refine_beam ends once the best score of a round rises by less than this; 0 never ends it.",
    )
    critic_timeout_ms: int = Field(
        default=2000,
        ge=100,
        le=300_000,
        description="Least time limit of a check; the limit is ten times what it takes on the original.",
    )
    max_candidates: int = Field(default=25, ge=1, le=1000, description="Most candidates of one repair.")
    max_checks: int = Field(default=1000, ge=1, le=100_000, description="Most runs of checks in one repair.")
    max_check_cpu_s: float = Field(
        default=3600.0, ge=1, le=360_000, description="Most processor time of all checks of one repair, in seconds."
    )
    enable_early_terminate: bool = Field(
        default=True, description="Whether a candidate that passes the gate ends the search; else the budget is spent."
    )
    allow_tool_use: bool = Field(
        default=False, description="Whether the model may read files and search in them while it writes."
    )
    allow_unreproduced: bool = Field(
        default=False, description="Whether a repair goes on where no check fails on the original."
    )
    max_tokens: int = Field(default=4096, ge=64, le=32_768, description="Most tokens of one reply.")
    max_parallel_checks: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Most checks that run at once in this process; 0: one less than it has cores.",
    )
    max_allowed_num_candidates: int = Field(default=10, ge=1, le=10, description="Most that a request may ask for.")
    max_allowed_reflection_depth: int = Field(default=10, ge=1, le=10, description="Most that a request may ask for.")
    max_allowed_candidates: int = Field(default=1000, ge=1, le=1000, description="Most that a request may ask for.")
    max_allowed_tokens: int = Field(default=32_768, ge=64, le=32_768, description="Most that a request may ask for.")
    max_active_s: float = Field(default=3600.0, ge=1, le=_DAY_S, description="Most seconds of one repair.")
    max_snapshot_bytes: int = Field(
        default=32 * _MEBI, ge=_KIBI, le=1024 * _MEBI, description="Largest snapshot, in bytes."
    )
    max_snapshot_files: int = Field(default=5000, ge=1, le=100_000, description="Most files of a snapshot.")
    snapshot_quota_bytes: int = Field(
        default=256 * _MEBI,
        ge=_KIBI,
        le=1024 * 1024 * _MEBI,
        description="Most bytes that the snapshots of one tenant may take together.",
    )
    snapshot_retention_s: float = Field(
        default=float(_DAY_S),
        ge=60,
        le=3650 * _DAY_S,
        description="Seconds that a snapshot is kept after its last use.",
    )
    critics: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)], ...] = Field(
        default=(),
        strict=False,
        max_length=32,
        description="Installed critics that look at candidates besides the checks, the linter and the built-in ones.",
    )
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    environments: Environments = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=64,
        description="Environments in which checks run, by name; clients name them and never a path.",
    )
    commands: Commands = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=100,
        description="Commands by name, each a list of arguments, which callers without the permission repair:commands "
        "may use.",
    )
