"""Reminds the model, in every prompt of a session, of the tools whose last call failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types.turns import ContextScope, LedgerState, ToolStep

if TYPE_CHECKING:
    from reasond_server.types import Event, Json
    from reasond_server.types.turns import ContextGoal

_MOST = 20


class OpenPoints:
    """The tools whose last call failed, with the number of failures in a row.

    The state is {"failed": {TOOL: COUNT}}. The text is data and no instruction: names of tools may come from clients.
    """

    name = "open_points"
    scope = ContextScope.SESSION
    is_instruction = False

    def populate(self, event: Event, state: Json) -> Json:
        """Count failures; a success clears those of its tool."""
        if not isinstance(event, ToolStep) or not event.state.is_closed:
            return state
        failed = dict(state.get("failed", {}))
        if event.state is LedgerState.FAILED:
            failed[event.tool] = failed.pop(event.tool, 0) + 1
        elif failed.pop(event.tool, None) is None:
            return state
        # The oldest failures go first: a state is stored with every turn, so it must stay small.
        return {"failed": dict(list(failed.items())[-_MOST:])} if failed else {}

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - the same for each goal
        """Return one line for each tool."""
        failed: dict[str, int] = state.get("failed", {})
        lines = [f"- {tool}: failed {count} times in a row" for tool, count in failed.items()]
        return "\n".join(["Tools that did not work:", *lines]) if lines else ""
