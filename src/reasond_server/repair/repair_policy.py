"""The operator's decisions about repairs, and the parameters of one, as plain values."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from reasond_server.repair.look_ups import MOST_LOOK_UPS
from reasond_server.types.repairs import RepairSearch
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@value
class RepairParameters:
    """The parameters of one repair as they apply; repairs.proto gives units and bounds."""

    search: RepairSearch = RepairSearch.REFINE_BEAM
    num_candidates: int = 5
    max_reflection_depth: int = 3
    critique_threshold: float = 85.0
    beam_width: int = 2
    patience: int = 8
    temperature: float = 0.2
    spread_temperature: float = 0.8
    top_p: float = 0.9
    min_improvement_delta: float = 0.0
    critic_timeout_ms: int = 2000
    max_candidates: int = 25
    max_checks: int = 1000
    max_check_cpu_s: float = 3600.0
    enable_early_terminate: bool = True
    allow_tool_use: bool = False
    allow_unreproduced: bool = False
    max_tokens: int = 4096
    seed: int | None = None

    @property
    def most_calls(self) -> int:
        """The most model calls for one candidate."""
        return 1 + MOST_LOOK_UPS if self.allow_tool_use else 1


@value
class RepairPolicy:
    """The section [repair] of the configuration; docs/reference describes each key.

    `defaults` are the parameters of a request that names none, `ceilings` the most that a request may ask for by name.
    `commands` are the commands that callers without the permission for their own may use.
    `records_content` is that of the section [store]: without content nobody else can go on with a repair.
    """

    is_enabled: bool = False
    defaults: RepairParameters = field(default_factory=RepairParameters)
    ceilings: Mapping[str, int] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    max_parallel_checks: int = 1
    max_active_s: float = 3600.0
    max_snapshot_bytes: int = 33_554_432
    max_snapshot_files: int = 5_000
    snapshot_retention_s: float = 86_400.0
    records_content: bool = True
