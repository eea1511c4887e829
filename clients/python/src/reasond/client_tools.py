"""Functions of this program as tools of a turn: `client_tool` describes one; its calls are checked before it runs."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

from reasond.tool_types import object_schema, read_members, schema_of
from reasond.v1 import turns_pb2
from reasond.v1.strategies_pb2 import ToolResult

Approve: TypeAlias = Callable[[turns_pb2.PendingCall], "bool | str | Awaitable[bool | str]"]
Resolve: TypeAlias = Callable[[turns_pb2.PendingCall], Any]
P = ParamSpec("P")
ResultT = TypeVar("ResultT")

KEY_PARAMETER: Final = "idempotency_key"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_SECTION: Final = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*\Z")
_ARGUMENT: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)\Z")
_MAX_DESCRIPTION: Final = 2_000
_MAX_ERROR: Final = 2_000
_MAX_REENTRY_BYTES: Final = 4 * 1024 * 1024 - 64 * 1024
_RESULT_FIELD: Final = re.compile(r"(?:[a-z_]+\.)?results\[(\d{1,4})\]\.result_json")


class ToolArgumentsError(ValueError):
    """The arguments of a call do not fit the function; the model is told the text."""


class TurnAwaitsError(RuntimeError):
    """A turn waits for calls that nothing here settles; `turn` is that turn, and `resume_turn` goes on with it."""

    def __init__(self, message: str, turn: turns_pb2.Turn) -> None:
        super().__init__(message)
        self.turn = turn


class ClientFunction(Generic[P, ResultT]):
    """A function that a model may call during a turn; it can still be called like the function itself."""

    def __init__(self, function: Callable[P, ResultT], *, name: str = "", description: str = "") -> None:
        told, texts = _read_docstring(inspect.getdoc(function) or "")
        self.function = function
        self.name = name or function.__name__
        self.description = (description or told)[:_MAX_DESCRIPTION]
        self.is_async = inspect.iscoroutinefunction(function)
        if not _NAME.match(self.name):
            raise TypeError(f"the name of a tool must have 1-128 of a-z, A-Z, 0-9, _ and -, not {self.name!r}")
        parameters = inspect.signature(function).parameters
        self._wants_key = KEY_PARAMETER in parameters
        self._hints = _hints_of(function, parameters)
        self._required = {each for each in self._hints if parameters[each].default is inspect.Parameter.empty}
        properties = {}
        for each, hint in self._hints.items():
            schema = schema_of(hint, f"the parameter {each!r} of {self.name}")
            properties[each] = {**({"description": texts[each]} if each in texts else {}), **schema}
        self.parameters = object_schema(properties, [each for each in self._hints if each in self._required])

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<client tool {self.name}>"

    def describe(self) -> turns_pb2.ClientTool:
        """Return what the server and the model are told of it."""
        return turns_pb2.ClientTool(
            name=self.name,
            description=self.description,
            parameters_json=json.dumps(self.parameters, ensure_ascii=False),
        )

    def read_arguments(self, pending: turns_pb2.PendingCall) -> dict[str, Any]:
        """Return the arguments for the function, with the idempotency key if the function declares it.

        Raises:
            ToolArgumentsError: they do not fit the function; the text names all problems.
        """
        problems: list[str] = []
        try:
            value = json.loads(pending.call.arguments_json or "{}")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ToolArgumentsError("the arguments must be a JSON object")
        arguments = read_members(self._hints, self._required, value, "", problems)
        if problems:
            raise ToolArgumentsError("; ".join(problems))
        return {**arguments, KEY_PARAMETER: pending.idempotency_key} if self._wants_key else arguments


@overload
def client_tool(function: Callable[P, ResultT], /) -> ClientFunction[P, ResultT]: ...
@overload
def client_tool(
    *, name: str = "", description: str = ""
) -> Callable[[Callable[P, ResultT]], ClientFunction[P, ResultT]]: ...
def client_tool(
    function: Callable[P, ResultT] | None = None, /, *, name: str = "", description: str = ""
) -> ClientFunction[P, ResultT] | Callable[[Callable[P, ResultT]], ClientFunction[P, ResultT]]:
    """Make a plain or asynchronous function a tool of turns, as `@client_tool` or `@client_tool(name=...)`.

    The schema of its arguments comes from its type hints: str, int, float, bool, list[...], dict[str, ...], Literal,
    Optional, dataclasses and TypedDicts; `Annotated[str, "text"]` and the Args of the docstring describe arguments, and
    those with a default may be left out. The description is the docstring up to its first section. A parameter
    `idempotency_key: str` is not shown to the model: it gets the key of the call. Whoever dies between the function's
    effect and the report of its result runs the function again with the same key.

    Raises:
        TypeError: a parameter has no type, or one that cannot be described.
    """
    if function is not None:
        return ClientFunction(function)

    def decorate(each: Callable[P, ResultT]) -> ClientFunction[P, ResultT]:
        return ClientFunction(each, name=name, description=description)

    return decorate


class Toolset:
    """What settles the pending calls of a turn: functions, and callbacks for approvals and for unknown outcomes."""

    def __init__(
        self, tools: Iterable[ClientFunction[..., Any]], *, approve: Approve | None, resolve: Resolve | None
    ) -> None:
        self.tools: Mapping[str, ClientFunction[..., Any]] = {each.name: each for each in _require_tools(tools)}
        self.approve = approve
        self.resolve = resolve

    def describe(self) -> list[turns_pb2.ClientTool]:
        """Return what the server and the model are told of the functions."""
        return [each.describe() for each in self.tools.values()]

    def require_all(self, turn: turns_pb2.Turn) -> None:
        """Check that there is something for each pending call, before the first function runs.

        Raises:
            TurnAwaitsError: there is nothing for some of them.
        """
        lacking = [text for each in turn.handoff.calls if (text := self._lack_of(each))]
        if lacking:
            message = f"turn {turn.turn_id!r} waits for what is not given here: {'; '.join(lacking)}"
            raise TurnAwaitsError(f"{message}; give it to resume_turn({turn.turn_id!r}, ...)", turn)

    def _lack_of(self, pending: turns_pb2.PendingCall) -> str:
        """Return what is not given for a call; empty if nothing is missing."""
        call = pending.call
        if pending.kind == turns_pb2.CALL_KIND_APPROVE:
            return "" if self.approve else f"approve= for {call.call_id} ({call.tool})"
        if pending.kind == turns_pb2.CALL_KIND_RESOLVE:
            return "" if self.resolve else f"resolve= for {call.call_id} ({call.tool})"
        return "" if call.tool in self.tools else f"the tool {call.tool} for {call.call_id}"


def build_decision(pending: turns_pb2.PendingCall, said: bool | str) -> turns_pb2.Decision:  # noqa: FBT001 - what a callback said
    """Return the decision: True approves, False refuses, and a text refuses with this reason."""
    reason = said if isinstance(said, str) else ""
    return turns_pb2.Decision(call_id=pending.call.call_id, is_approved=said is True, reason=reason)


def build_result(pending: turns_pb2.PendingCall, value: object) -> ToolResult:
    """Return the result of a call; a value that is no JSON makes it an error, which the model is told."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_encode)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return build_failure(pending, f"the tool returned a {type(value).__name__} that is no JSON")
    return ToolResult(call_id=pending.call.call_id, result_json=text)


def build_failure(pending: turns_pb2.PendingCall, text: str) -> ToolResult:
    """Return an error as the result of a call."""
    clean = text[:_MAX_ERROR].encode("utf-8", "replace").decode()
    error_json = json.dumps({"error": clean}, ensure_ascii=False)
    return ToolResult(call_id=pending.call.call_id, result_json=error_json, is_error=True)


def fit_message(reentry: turns_pb2.TurnReentry) -> None:
    """Replace the largest results by errors until the re-entry fits into one message."""
    results = sorted(reentry.results, key=lambda one: one.ByteSize())
    while results and reentry.ByteSize() > _MAX_REENTRY_BYTES:
        _tell_large(results.pop())


def replace_large(reentry: turns_pb2.TurnReentry, fields: Iterable[str]) -> bool:
    """Replace the results that `fields` name, as `results[0].result_json` does, by errors; return whether any was."""
    named = [int(found[1]) for field in fields if (found := _RESULT_FIELD.fullmatch(field))]
    for place in named:
        _tell_large(reentry.results[place])
    return bool(named)


def _tell_large(result: ToolResult) -> None:
    size = len(result.result_json.encode())
    text = f"the tool ran, but its result of {size} bytes is more than the server takes; ask for less"
    result.result_json, result.is_error = json.dumps({"error": text}), True


def describe_exception(error: Exception) -> str:
    """Return an exception as the model is told it."""
    return str(error) if isinstance(error, ToolArgumentsError) else f"{type(error).__name__}: {error}"


def _require_tools(tools: Iterable[ClientFunction[..., Any]]) -> list[ClientFunction[..., Any]]:
    found = list(tools)
    for each in found:
        if not isinstance(each, ClientFunction):
            raise TypeError(f"tools must be functions with @reasond.client_tool, not {each!r}")
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"tools must have different names; twice: {', '.join(sorted(twice))}")
    return found


def _encode(value: object) -> object:
    """Return a dataclass as a dictionary, for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(value)


def _hints_of(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the types of the parameters that the model fills in."""
    name = getattr(function, "__name__", repr(function))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"a type of {name} cannot be found: {error}; import it where the function is defined") from None
    found = {}
    for parameter in parameters.values():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise TypeError(f"the parameter {parameter.name!r} of {name} must be one that can be passed by name")
        if parameter.name == KEY_PARAMETER:
            continue
        if parameter.name not in hints:
            raise TypeError(f"the parameter {parameter.name!r} of {name} has no type; the model must know it")
        found[parameter.name] = hints[parameter.name]
    return found


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, as one paragraph, and what the section Args says of each argument."""
    before, about = [], {}
    section, name = "", ""
    for line in text.splitlines():
        if match := _SECTION.match(line):
            section, name = match[1], ""
        elif not section:
            before.append(line)
        elif section.startswith("Arg") and (match := _ARGUMENT.match(line.strip())) and line.startswith("    "):
            name = match[1]
            about[name] = match[2].strip()
        elif name and line.strip():
            about[name] = f"{about[name]} {line.strip()}".strip()
    return " ".join(" ".join(before).split()), about
