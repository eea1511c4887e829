"""The port that strategies call tools by: what one run may call, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors import InternalError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.types import ToolCall, ToolResult


class Toolbox(Protocol):
    """The tools of one run. Strategies reach tools through it alone, so that no call is unbounded or made twice."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called, by name; none where the run may use none."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call` and return what came of it, also where the tool failed, is unknown or took too long.

        Raises:
            TokenBudgetExhaustedError: the budget allows no further tool call.
            ToolOutcomeUnknownError: a process died while this call was at work, and it may not be made again.
        """
        ...

    def is_idempotent(self, name: str) -> bool:
        """Return whether calling `name` twice does no more than calling it once; False for what is unknown."""
        ...

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Take a call that was made in an earlier life of the run: it counts, and its result can be read again."""
        ...


class ToolSource(Protocol):
    """All tools of the server, of which every run gets a toolbox of its own."""

    def toolbox(self, *, max_calls: int | None) -> Toolbox:
        """Return the tools for one run, which may make at most `max_calls` calls; None sets no bound."""
        ...


class _NoTools:
    """The toolbox of a run that may use no tools, and the source of such."""

    def toolbox(self, *, max_calls: int | None) -> Toolbox:  # noqa: ARG002 - the protocol gives it
        """Return itself: it keeps nothing."""
        return self

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """No tools."""
        return ()

    async def call(self, call: ToolCall) -> ToolResult:
        """Refuse: a strategy must not call what it was not offered."""
        raise InternalError(f"the run has no tools, but its strategy called {shown(call.name)}")

    def is_idempotent(self, name: str) -> bool:  # noqa: ARG002 - the protocol gives it
        """Return False: nothing is known."""
        return False

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Keep nothing."""


NO_TOOLS: Final = _NoTools()
