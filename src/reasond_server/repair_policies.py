"""Settings become the policy of repairs; `repair` itself gets plain values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from reasond_server.repair.repair_policy import RepairParameters, RepairPolicy
from reasond_server.types.repairs import RepairSearch

if TYPE_CHECKING:
    from reasond_server.config.repairs import RepairSettings


def repair_policy_of(settings: RepairSettings, *, records_content: bool = True) -> RepairPolicy:
    """Return the policy of [repair]; `records_content` is that of [store]."""
    return RepairPolicy(
        is_enabled=settings.enabled,
        defaults=RepairParameters(
            search=RepairSearch(settings.search),
            num_candidates=settings.num_candidates,
            max_reflection_depth=settings.max_reflection_depth,
            critique_threshold=settings.critique_threshold,
            beam_width=settings.beam_width,
            patience=settings.patience,
            temperature=settings.temperature,
            spread_temperature=settings.spread_temperature,
            top_p=settings.top_p,
            min_improvement_delta=settings.min_improvement_delta,
            critic_timeout_ms=settings.critic_timeout_ms,
            max_candidates=settings.max_candidates,
            max_checks=settings.max_checks,
            max_check_cpu_s=settings.max_check_cpu_s,
            enable_early_terminate=settings.enable_early_terminate,
            allow_tool_use=settings.allow_tool_use,
            allow_unreproduced=settings.allow_unreproduced,
            max_tokens=settings.max_tokens,
        ),
        ceilings={
            "num_candidates": settings.max_allowed_num_candidates,
            "max_reflection_depth": settings.max_allowed_reflection_depth,
            "max_candidates": settings.max_allowed_candidates,
            "max_tokens": settings.max_allowed_tokens,
            "max_checks": settings.max_checks,
            "max_check_cpu_s": int(settings.max_check_cpu_s),
        },
        commands=settings.commands,
        max_parallel_checks=settings.max_parallel_checks or max(1, (os.cpu_count() or 2) - 1),
        max_active_s=settings.max_active_s,
        max_snapshot_bytes=settings.max_snapshot_bytes,
        max_snapshot_files=settings.max_snapshot_files,
        snapshot_retention_s=settings.snapshot_retention_s,
        records_content=records_content,
    )
