"""The port through which strategies call tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors.base import InternalError, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.tools.tool import Tool
    from reasond_server.types import ToolCall, ToolResult


class Toolbox(Protocol):
    """The tools of one run. Strategies call tools only through it, so that each call is bounded and made once."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The specifications of the tools that the run may call, ordered by name; empty if it may call none."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call` and return its result, even if the tool failed, is unknown or took too long.

        Raises:
            TokenBudgetExhaustedError: the budget allows no further tool call.
            ToolOutcomeUnknownError: a process died during this call, and it may not be repeated.
        """
        ...

    def is_idempotent(self, name: str) -> bool:
        """Return whether two calls of `name` have the same effect as one; False for an unknown tool."""
        ...

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Count a call that the run made before it was resumed, and keep its result for reading."""
        ...


class KeyedToolbox(Toolbox, Protocol):
    """The toolbox that a `ToolSource` opens for one run; each call may carry an idempotency key."""

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        """Execute `call` as `Toolbox.call` does; a repeated call gives the tool the same `idempotency_key`."""
        ...


class ToolSource(Protocol):
    """All tools of the server; every run gets its own toolbox."""

    def open_toolbox(
        self, *, max_calls: int | None, execution_id: str = "", also: Sequence[Tool] = (), keeps_whole: bool = False
    ) -> KeyedToolbox:
        """Return the tools for the run of `execution_id`, and the tools in `also`.

        The run may make at most `max_calls` calls; None means no limit. With `keeps_whole` results are returned whole,
        and the run shortens them itself.
        """
        ...


class _NoTools:
    """The toolbox of a run that may call no tools, and the source of such toolboxes."""

    def open_toolbox(
        self,
        *,
        max_calls: int | None,  # noqa: ARG002 - as above
        execution_id: str = "",  # noqa: ARG002 - as above
        also: Sequence[Tool] = (),  # noqa: ARG002 - as above
        keeps_whole: bool = False,  # noqa: ARG002 - as above
    ) -> KeyedToolbox:
        """Return itself, which is safe because it has no state."""
        return self

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """No tools."""
        return ()

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:  # noqa: ARG002 - as above
        """Refuse the call: a strategy may call only the tools that it was offered."""
        raise InternalError(f"the run has no tools, but its strategy called {show(call.name)}")

    def is_idempotent(self, name: str) -> bool:  # noqa: ARG002 - the protocol gives it
        """Return False: nothing is known."""
        return False

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Keep nothing."""


NO_TOOLS: Final = _NoTools()
