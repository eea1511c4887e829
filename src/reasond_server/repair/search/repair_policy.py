"""The operator's decisions about repairs, in the section [repair] of the configuration, and the parameters of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.repair.results.gate import SignRule
from reasond_server.repair.search.look_ups import MOST_LOOK_UPS
from reasond_server.types.policy_sections import ChosenName, PluginName, PolicySection, freeze
from reasond_server.types.repairs import RepairSearch
from reasond_server.types.values import value

_KIBI: Final = 1024
_MEBI: Final = 1024 * _KIBI
_DAY_S: Final = 86_400

Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Command = Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64, strict=False)]


@value
class RepairDefaults(PolicySection):
    """The parameters of a repair that the operator presets; a request may name each within the same bounds."""

    search: Annotated[
        RepairSearch, Field(strict=False, description="How candidates are searched; see docs/guides/repair.md.")
    ] = RepairSearch.REFINE_BEAM
    num_candidates: Annotated[int, Field(ge=1, le=10, description="Candidates of one round.")] = 5
    first_candidates: Annotated[
        int,
        Field(
            ge=0,
            le=10,
            description="Candidates that are judged before the rest of the first round is asked for: 1 makes an easy "
            "fix cost one call, and others one call's time more; 0 asks for the round at once.",
        ),
    ] = 0
    take_notes: Annotated[
        bool,
        Field(description="Whether prompts tell what other candidates changed and how they failed; tournament always."),
    ] = False
    max_reflection_depth: Annotated[
        int, Field(ge=1, le=10, description="Largest depth of a candidate; those made from the original have 1.")
    ] = 3
    critique_threshold: Annotated[
        float,
        Field(ge=0, le=100, description="Score from which a candidate that passes every check ends the search, 0-100."),
    ] = 85.0
    beam_width: Annotated[int, Field(ge=1, le=10, description="Candidates that the next round refines.")] = 2
    patience: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="Expansions without a new behaviour, or candidates that repeat others or cannot be used, after "
            "which the search ends.",
        ),
    ] = 8
    temperature: Annotated[float, Field(ge=0, le=2, description="Sampling temperature of a round's first sample.")] = (
        0.2
    )
    spread_temperature: Annotated[float, Field(ge=0, le=2, description="Sampling temperature of the others.")] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1, description="Nucleus sampling, above 0 and at most 1.")] = 0.9
    min_improvement_delta: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="refine_beam ends once the best score of a round rises by less than this; 0 never ends it.",
        ),
    ] = 0.0
    critic_timeout_ms: Annotated[
        int,
        Field(
            ge=100,
            le=300_000,
            description="Least time limit of a check; the limit is ten times what it takes on the original.",
        ),
    ] = 2000
    max_candidates: Annotated[int, Field(ge=1, le=1000, description="Most candidates of one repair.")] = 25
    max_checks: Annotated[int, Field(ge=1, le=100_000, description="Most runs of checks in one repair.")] = 1000
    max_check_cpu_s: Annotated[
        float, Field(ge=1, le=360_000, description="Most processor time of all checks of one repair, in seconds.")
    ] = 3600.0
    enable_early_terminate: Annotated[
        bool,
        Field(description="Whether a candidate that passes the gate ends the search; else the budget is spent."),
    ] = True
    allow_tool_use: Annotated[
        bool, Field(description="Whether the model may read files and search in them while it writes.")
    ] = False
    allow_unreproduced: Annotated[
        bool, Field(description="Whether a repair goes on where no check fails on the original.")
    ] = False
    max_tokens: Annotated[int, Field(ge=64, le=32_768, description="Most tokens of one reply.")] = 4096


@value
class RepairParameters(RepairDefaults):
    """The parameters of one repair as they apply; repairs.proto gives units and bounds."""

    seed: Annotated[int | None, Field(ge=-(2**63), le=2**63 - 1)] = None

    @property
    def has_notes(self) -> bool:
        """Whether prompts tell of failed candidates."""
        return self.take_notes or self.search is RepairSearch.TOURNAMENT

    @property
    def most_calls(self) -> int:
        """The most model calls for one candidate."""
        return 1 + MOST_LOOK_UPS if self.allow_tool_use else 1


@value
class RepairPolicy(RepairDefaults):
    """Repairs: candidates, critics that run them, and the patch."""

    enabled: Annotated[bool, Field(description="Whether repairs are offered.")] = False
    model_preference: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=64)], ...],
        Field(
            strict=False,
            max_length=16,
            description="Backends of [llm.backends] in the order of preference; the next one is asked only after "
            "errors that spent nothing. Empty: the model of [llm].",
        ),
    ] = ()
    snapshot_quota_bytes: Annotated[
        int,
        Field(
            ge=_KIBI,
            le=1024 * 1024 * _MEBI,
            description="Most bytes that the snapshots of one tenant may take together.",
        ),
    ] = 256 * _MEBI
    critics: Annotated[
        tuple[PluginName, ...],
        Field(
            strict=False,
            max_length=32,
            description="Installed critics that look at candidates besides the checks, the linter and the built-in "
            "ones.",
        ),
    ] = ()
    max_parallel_checks: Annotated[
        int,
        Field(
            ge=0,
            le=64,
            description="Most checks that run at once in this process; 0: one less than it has cores.",
        ),
    ] = 0
    max_allowed_num_candidates: Annotated[int, Field(ge=1, le=10, description="Most that a request may ask for.")] = 10
    max_allowed_reflection_depth: Annotated[int, Field(ge=1, le=10, description="Most that a request may ask for.")] = (
        10
    )
    max_allowed_candidates: Annotated[int, Field(ge=1, le=1000, description="Most that a request may ask for.")] = 1000
    max_allowed_tokens: Annotated[int, Field(ge=64, le=32_768, description="Most that a request may ask for.")] = 32_768
    max_active_s: Annotated[float, Field(ge=1, le=_DAY_S, description="Most seconds of one repair.")] = 3600.0
    max_snapshot_bytes: Annotated[int, Field(ge=_KIBI, le=1024 * _MEBI, description="Largest snapshot, in bytes.")] = (
        32 * _MEBI
    )
    max_snapshot_files: Annotated[int, Field(ge=1, le=100_000, description="Most files of a snapshot.")] = 5000
    snapshot_retention_s: Annotated[
        float, Field(ge=60, le=3650 * _DAY_S, description="Seconds that a snapshot is kept after its last use.")
    ] = float(_DAY_S)
    commands: Annotated[
        Mapping[ChosenName, Command],
        AfterValidator(freeze),
        Field(
            max_length=100,
            description="Commands by name, each a list of arguments, which callers without the permission "
            "repair:commands may use.",
        ),
    ] = field(default_factory=dict)
    signs: Annotated[
        Mapping[SignRule | Literal["all"], Literal["review", "refuse", "allow"]],
        AfterValidator(freeze),
        Field(
            description="What becomes of lines that could mislead checks, by rule or for all: review tells them with "
            "the patch, refuse accepts no such patch, allow lets them pass. What certainly cheats is refused.",
        ),
    ] = field(default_factory=dict)

    @property
    def defaults(self) -> RepairParameters:
        """The parameters of a request that names none."""
        return RepairParameters(**{each.name: getattr(self, each.name) for each in fields(RepairDefaults)})

    @property
    def ceilings(self) -> Mapping[str, float]:
        """The most that a request may ask for, by parameter."""
        return {
            "num_candidates": self.max_allowed_num_candidates,
            "max_reflection_depth": self.max_allowed_reflection_depth,
            "max_candidates": self.max_allowed_candidates,
            "max_tokens": self.max_allowed_tokens,
            "max_checks": self.max_checks,
            "max_check_cpu_s": self.max_check_cpu_s,
        }

    @property
    def checks_at_once(self) -> int:
        """The most checks that run at once in this process."""
        return self.max_parallel_checks or max(1, (os.cpu_count() or 2) - 1)
