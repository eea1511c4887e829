"""What a tool is: its description, its limits, and one coroutine; for the server's own and for those of others.

A package of tools names them in the entry-point group `reasond.tools`, each entry giving a tool, or a class or
function that makes one:

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
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, final, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from reasond_server.violations import violations_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.errors import Violation
    from reasond_server.types import Json

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider accepts for the name of a function."""

MAX_OUTPUT_BYTES: Final = 1_048_576
"""How many bytes of a result are kept unless the tool says otherwise."""


class ToolFailedError(Exception):
    """A tool could not do what was asked; its text is shown to the model, so it says what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a call is told beside its arguments.

    `call_id` is unique within the run and the same when a call is made again after a crash: tools may use it, with
    the execution's own id, as a key of idempotency. `timeout_s` is how long the call may take.
    """

    call_id: str
    timeout_s: float


@runtime_checkable
class Tool(Protocol):
    """Something that a model may call. One instance serves many runs at once.

    Attributes:
        name: what it is called by; must match `TOOL_NAME`.
        description: what it does and when it is of use, in a sentence or two, for the model.
        parameters: JSON Schema of its arguments, an object.
        timeout_s: seconds that one call may take; None takes the operator's `[tools] timeout_s`.
        max_output_bytes: most bytes of a result that are kept; the rest is lost, and the model told so.
        is_idempotent: whether calling it twice does no more than calling it once. Only then is a call made again
            whose outcome a crash has hidden.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - described above

    @property
    def description(self) -> str: ...  # noqa: D102 - described above

    @property
    def parameters(self) -> Json: ...  # noqa: D102 - described above

    @property
    def timeout_s(self) -> float | None: ...  # noqa: D102 - described above

    @property
    def max_output_bytes(self) -> int: ...  # noqa: D102 - described above

    @property
    def is_idempotent(self) -> bool: ...  # noqa: D102 - described above

    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return what is wrong with `arguments`; nothing is called with wrong ones."""
        ...

    async def invoke(self, arguments: Json, context: ToolContext) -> object:
        """Do it with `arguments`, which have no violations, and return something that JSON can hold.

        Raises:
            ToolFailedError: it could not be done; the text is for the model.
            Exception: anything else is logged, and the model hears only that the tool failed.
        """
        ...


class ToolArguments(BaseModel):
    """Base of the arguments of a tool: unknown ones are refused, and numbers are no strings."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


class ModelledTool(ABC, Generic[ArgumentsT]):
    """A `Tool` whose arguments are a Pydantic model, which gives the JSON Schema and checks what the model sent."""

    name: ClassVar[str]
    description: ClassVar[str]
    arguments_type: ClassVar[type[ToolArguments]]
    timeout_s: float | None = None
    max_output_bytes: int = MAX_OUTPUT_BYTES
    is_idempotent: bool = False

    @property
    @final
    def parameters(self) -> Json:
        """JSON Schema of the arguments."""
        return _schema_of(self.arguments_type)

    @final
    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return what Pydantic finds wrong with `arguments`."""
        try:
            self.arguments_type.model_validate(arguments)
        except ValidationError as error:
            return violations_of(error, known=self.arguments_type.model_fields, most=10)
        return ()

    @final
    async def invoke(self, arguments: Json, context: ToolContext) -> object:
        """Call with the arguments as their model."""
        checked: Any = self.arguments_type.model_validate(arguments)
        return await self.call(checked, context)

    @abstractmethod
    async def call(self, arguments: ArgumentsT, context: ToolContext) -> object:
        """Do it and return something that JSON can hold. Raises as `Tool.invoke`."""


# Making a schema takes longer than all else that a run does beside its calls, and a class never has another one.
@cache
def _schema_of(arguments_type: type[ToolArguments]) -> Json:
    schema = arguments_type.model_json_schema()
    return {key: value for key, value in schema.items() if key not in {"title", "description"}}
