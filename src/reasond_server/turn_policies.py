"""Settings become the policy of turns, and how their prompts show results; `turns` itself gets plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.context.reasoning_parts import ContextSettings
from reasond_server.turns.policy import Mode, OnToolFailure, OnUnknownOutcome, Synthesis, TurnPolicy

if TYPE_CHECKING:
    from reasond_server.config import TurnsSettings
    from reasond_server.config.turns import TurnContextSettings


def policy_of(settings: TurnsSettings, *, records_content: bool = True) -> TurnPolicy:
    """Return the policy of [turns]; `records_content` is that of [store]."""
    return TurnPolicy(
        default_mode=settings.default_mode,
        modes={
            name: Mode(instructions=mode.instructions, tools=mode.tools, backend=mode.backend, welcome=mode.welcome)
            for name, mode in settings.modes.items()
        },
        needs_approval=settings.needs_approval,
        max_model_calls=settings.max_model_calls,
        max_tool_calls=settings.max_tool_calls,
        max_calls_per_reply=settings.max_calls_per_reply,
        tool_parallelism=settings.tool_parallelism,
        on_tool_failure=OnToolFailure(settings.on_tool_failure),
        on_unknown_outcome=OnUnknownOutcome(settings.on_unknown_outcome),
        handoff_ttl_s=settings.handoff_ttl_s,
        max_active_s=settings.max_active_s,
        session_retention_s=settings.session_retention_s,
        max_client_tools=settings.max_client_tools,
        max_result_bytes=settings.max_result_bytes,
        max_kept_bytes=settings.max_kept_bytes,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        synthesis=Synthesis(settings.context.synthesis),
        summary_tokens=settings.context.summary_tokens if settings.context.summaries else None,
        summary_backend=settings.context.summary_backend,
        records_content=records_content,
    )


def context_of(settings: TurnContextSettings) -> ContextSettings:
    """Return how prompts show results, as [turns.context] says."""
    return ContextSettings(
        preview_above_tokens=settings.preview_above_tokens,
        preview_tokens=settings.preview_tokens,
        error_tokens=settings.error_tokens,
        clear_at_least_tokens=settings.clear_at_least_tokens,
        keep_recent=settings.keep_recent,
        history_share=settings.history_share,
    )
