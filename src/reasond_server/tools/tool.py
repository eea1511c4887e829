"""What a tool is: its description, its limits, and one coroutine; the same for built-in tools and those of others.

A package of tools names them in the entry-point group `reasond.tools`; each entry is a tool, or a class or function
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
"""Every provider accepts such a name of a function."""


class ToolFailedError(Exception):
    """A tool could not do its work; the model sees the text, so it says what to do about it."""


class ArgumentsRefusedError(ToolFailedError):
    """Nothing was done, because the arguments are wrong in a way that their schema cannot tell.

    This is the model's mistake, as arguments that do not fit the schema are: the call does not count as failed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool gets besides its arguments.

    Attributes:
        call_id: unique within the run; a call that is made again after a crash has the same id.
        timeout_s: seconds that the call may take.
        execution_id: the execution whose run calls; empty where there is no server.
        idempotency_key: 64 hexadecimal digits that nobody can guess, by which another system can tell that it is asked
            the same again: the same when the call is made again after a crash, or for a request that takes the place of
            a cancelled one. Empty where there is no server.
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
        ...

    @property
    def description(self) -> str:
        """What it does and when to use it, in a sentence or two, for the model."""
        ...

    @property
    def parameters(self) -> Json:
        """JSON Schema of its arguments, an object."""
        ...

    @property
    def timeout_s(self) -> float | None:
        """Seconds that one call may take; None stands for the operator's `[tools] timeout_s`."""
        ...

    @property
    def max_output_bytes(self) -> int | None:
        """Most bytes of a result that are kept; the rest is lost, and the model is told so.

        None stands for the operator's `[tools] max_kept_bytes`, above which nothing is kept.
        """
        ...

    @property
    def is_idempotent(self) -> bool:
        """Whether two calls have the same effect as one; only then is a call repeated whose outcome a crash hides."""
        ...

    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return what is wrong with `arguments`; `invoke` is not called with wrong ones."""
        ...

    async def invoke(self, arguments: Json, context: ToolContext) -> object:
        """Do the work with `arguments`, which have no violations, and return a value that JSON can hold.

        Raises:
            ArgumentsRefusedError: nothing was done, because the arguments are wrong; the text is for the model.
            ToolFailedError: the work could not be done; the text is for the model.
            Exception: any other error is logged, and the model is told only that the tool failed.
        """
        ...


class ToolArguments(BaseModel):
    """Base of the arguments of a tool: unknown names are refused, and types are not converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


class ModelledTool(ABC, Generic[ArgumentsT]):
    """A `Tool` whose arguments are a Pydantic model, which gives the JSON Schema and checks what the model sent."""

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
        """Call with the arguments as an instance of their model."""
        checked: Any = self.arguments_type.model_validate(arguments)
        return await self.call(checked, context)

    @abstractmethod
    async def call(self, arguments: ArgumentsT, context: ToolContext) -> object:
        """Do the work and return a value that JSON can hold. Raises as `Tool.invoke`."""


# Building a schema is slow compared with a run without its calls, and the schema of a class never changes.
@cache
def _schema_of(arguments_type: type[ToolArguments]) -> Json:
    schema = arguments_type.model_json_schema()
    return {key: value for key, value in schema.items() if key not in {"title", "description"}}
