"""The protocol of a tool: a description, limits and one coroutine. Built-in and third-party tools share it.

A package registers its tools in the entry-point group `reasond.tools`; each entry is a tool, or a class or function
that makes one:

    class LookupArguments(ToolArguments):
        word: str = Field(max_length=64, description="The word to look up.")

    class Lookup(ModelledTool[LookupArguments]):
        name = "lookup"
        description = "Looks a word up in the glossary."
        arguments_type = LookupArguments
        is_idempotent = True

        async def call(self, arguments: LookupArguments, context: ToolContext) -> object:
            return {"meaning": await self._glossary.get(arguments.word)}
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, final, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from reasond_server.base.violations import list_violations
from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.types import Json, ToolCall, ToolResult

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Every provider accepts a function name that matches this."""


class ToolFailedError(Exception):
    """A tool could not do its work; the model sees the text, so the text says what the model can do."""


class ArgumentsRefusedError(ToolFailedError):
    """The tool did nothing, because the arguments are wrong in a way that their schema cannot express.

    The call does not count as failed: like a violation of the schema, this is a mistake of the model.
    """


@value
class ToolContext:
    """The context of a call, which a tool gets besides its arguments.

    Attributes:
        call_id: unique within the run; a call that is repeated after a crash has the same id.
        timeout_s: seconds that the call may take.
        execution_id: the execution whose run makes the call; empty without a server.
        idempotency_key: 64 hexadecimal digits that nobody can guess, by which another system recognises a repeated
            call. The key is the same when the call is repeated after a crash, or for a request that replaces a
            cancelled one. Empty without a server.
    """

    call_id: str
    timeout_s: float
    execution_id: str = ""
    idempotency_key: str = ""


@runtime_checkable
class Tool(Protocol):
    """Something that a model may call. One instance serves many runs at once."""

    @property
    def name(self) -> str:
        """The name by which models call it; it matches `TOOL_NAME`."""

    @property
    def description(self) -> str:
        """One or two sentences for the model: what the tool does and when to use it."""

    @property
    def parameters(self) -> Json:
        """JSON Schema of the arguments; its type is object."""

    @property
    def timeout_s(self) -> float | None:
        """Seconds that one call may take; None means the operator's `[tools] timeout_s`."""

    @property
    def max_output_bytes(self) -> int | None:
        """Most bytes of a result that are kept; the rest is lost, and the result says so.

        None means the operator's `[tools] max_kept_bytes`, which also bounds any other value.
        """

    @property
    def is_idempotent(self) -> bool:
        """Whether two calls have the same effect as one.

        Only a call of such a tool is repeated if a crash leaves its outcome unknown.
        """

    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return the violations in `arguments`; `invoke` is called only if there are none."""

    async def invoke(self, arguments: Json, context: ToolContext) -> object:
        """Do the work with `arguments`, which have no violations, and return a value that JSON can hold.

        Raises:
            ArgumentsRefusedError: nothing was done, because the arguments are wrong; the text is for the model.
            ToolFailedError: the work could not be done; the text is for the model.
            Exception: any other error is logged, and the model learns only that the tool failed.
        """


class ToolArguments(BaseModel):
    """Base of the arguments of a tool: unknown names are refused, and types are not converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


class ModelledTool(ABC, Generic[ArgumentsT]):
    """A `Tool` whose arguments are a Pydantic model: Pydantic makes the JSON Schema and checks the arguments."""

    name: ClassVar[str]
    description: ClassVar[str]
    arguments_type: ClassVar[type[ToolArguments]]
    timeout_s: float | None = None
    max_output_bytes: int | None = None
    is_idempotent: bool = False

    @property
    @final
    def parameters(self) -> Json:
        """JSON Schema of the arguments."""
        return _build_schema(self.arguments_type)

    @final
    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return the violations that Pydantic finds in `arguments`."""
        try:
            self.arguments_type.model_validate(arguments)
        except ValidationError as error:
            return list_violations(error, model=self.arguments_type, most=10)
        return ()

    @final
    async def invoke(self, arguments: Json, context: ToolContext) -> object:
        """Convert the arguments to an instance of their model and await `call`."""
        checked: Any = self.arguments_type.model_validate(arguments)
        return await self.call(checked, context)

    @abstractmethod
    async def call(self, arguments: ArgumentsT, context: ToolContext) -> object:
        """Do the work and return a value that JSON can hold. Raises the same errors as `Tool.invoke`."""


# Cached, because it is slow to build a schema, and the schema of a class never changes.
@cache
def _build_schema(arguments_type: type[ToolArguments]) -> Json:
    schema = arguments_type.model_json_schema()
    return {key: value for key, value in schema.items() if key not in {"title", "description"}}


class Toolbox(Protocol):
    """The tools of one run. Strategies call tools only through it, so that each call is bounded and made once."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The specifications of the tools that the run may call, ordered by name; empty if it may call none."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute `call` and return its result, even if the tool failed, is unknown or took too long.

        Raises:
            TokenBudgetExhaustedError: the budget allows no further tool call.
            ToolOutcomeUnknownError: a process died during this call, and it may not be repeated.
        """

    def is_idempotent(self, name: str) -> bool:
        """Return whether two calls of `name` have the same effect as one; False for an unknown tool."""

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Count a call that the run made before it was resumed, and keep its result for reading."""


class KeyedToolbox(Toolbox, Protocol):
    """The toolbox that a `ToolSource` opens for one run; each call may carry an idempotency key."""

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        """Execute `call` as `Toolbox.call` does; a repeated call gives the tool the same `idempotency_key`."""


class ToolSource(Protocol):
    """All tools of the server; every run gets its own toolbox."""

    def open_toolbox(
        self, *, max_calls: int | None, execution_id: str = "", also: Sequence[Tool] = (), keeps_whole: bool = False
    ) -> KeyedToolbox:
        """Return the tools for the run of `execution_id`, and the tools in `also`.

        The run may make at most `max_calls` calls; None means no limit. With `keeps_whole` results are returned whole,
        and the run shortens them itself.
        """


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
