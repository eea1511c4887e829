"""The executor: calls the tools of one run, one after the other, and turns every outcome into a result.

The strategy always gets a `ToolResult`. An unknown name, wrong arguments, a time-out, an exception and a result that is
not JSON become errors that the model can read and act on. The text of foreign exceptions goes only to the log. `Tools`
are those of the server with their limits; each run gets its own toolbox.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from reasond_server.base.plugins import PluginGroup
from reasond_server.errors.base import InternalError, SettingsError, Violation, show
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.llm.model import ToolSpec
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.tools.http_get import HttpGet
from reasond_server.tools.read_result import READ_TOOL_RESULT, ReadToolResult
from reasond_server.tools.results import (
    NotJsonError,
    ResultMemory,
    cut_to_bytes,
    parse_arguments,
    to_error_text,
    to_json_text,
    to_preview,
)
from reasond_server.tools.tool import TOOL_NAME, ArgumentsRefusedError, Tool, ToolContext, ToolFailedError
from reasond_server.types import Json, ToolCall, ToolResult
from reasond_server.types.values import value

NOT_CALLED: Final = "not_called"
REPEATED: Final = "repeated"
TOO_LARGE: Final = "too_large"
_INVALID_ARGUMENTS: Final = "invalid_arguments"
_UNKNOWN_TOOL: Final = "unknown_tool"
# The result says how to correct the call, and the call does not count as a failure of a tool.
_REFUSALS: Final = frozenset({NOT_CALLED, REPEATED, TOO_LARGE, _INVALID_ARGUMENTS, _UNKNOWN_TOOL})
_log = logging.getLogger("reasond.tools")
_UNWINDING_S: Final = 1.0
_MAX_NAMES: Final = 40
_MAX_MESSAGE_CHARACTERS: Final = 3_000
_MAX_SAID_CHARACTERS: Final = 300


@value
class ToolLimits:
    """Limits of every tool: seconds per call, bytes shown to the model, bytes kept per run."""

    timeout_s: float = 30.0
    max_shown_bytes: int = 4_096
    max_kept_bytes: int = 8_388_608


@value
class _Failure:
    """The reason why a call has no result; `kind` is one word for programs, `message` is for the model."""

    kind: str
    message: str


@dataclass(eq=False, kw_only=True)
class RunToolbox:
    """The `Toolbox` of one run over `tools`.

    The model reads a result that is too long to show by its handle, which is the id of the call. With `keeps_whole`
    results are returned whole instead, and errors can be read by their handle as well. Every call counts towards
    `max_calls`, whatever its outcome.
    """

    tools: Sequence[Tool]
    limits: ToolLimits
    max_calls: int | None
    execution_id: str = ""
    keeps_whole: bool = False
    observer: Observer = UNOBSERVED

    def __post_init__(self) -> None:
        self._calls = 0
        self._memory = ResultMemory(most_bytes=self.limits.max_kept_bytes)
        own: Sequence[Tool] = (ReadToolResult(memory=self._memory),) if self.tools or self.keeps_whole else ()
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in (*self.tools, *own)}
        self._specs: Sequence[ToolSpec] | None = None

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The specifications of the tools, ordered by name; the tool that reads results is added if there are any."""
        if self._specs is None:
            self._specs = tuple(
                ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
                for _, tool in sorted(self._tools.items())
            )
        return self._specs

    def is_idempotent(self, name: str) -> bool:
        """Return whether the tool declares that it is idempotent; False for an unknown tool."""
        tool = self._tools.get(name)
        return tool is not None and tool.is_idempotent

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Count a call that the run made before it was resumed; the logged part of its result can be read again."""
        self._calls += 1
        if (self.keeps_whole or not result.is_error) and call.name != READ_TOOL_RESULT:
            self._memory.keep(call.call_id, result.result_json)

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        """Call one tool and return its result; the tool receives `idempotency_key`.

        Raises:
            TokenBudgetExhaustedError: all tool calls of the budget are used up.
        """
        if self.max_calls is not None and self._calls >= self.max_calls:
            self.observer.tool_called(call.name, "refused", 0.0)
            raise TokenBudgetExhaustedError(
                f"The budget does not cover the next tool call: max_tool_calls is {self.max_calls}, and as many "
                "were made",
                remedy="Raise budget.max_tool_calls.",
                metadata={"limit": "max_tool_calls", "allowed": str(self.max_calls), "spent": str(self._calls)},
            )
        self._calls += 1
        loop = asyncio.get_running_loop()
        kind, since_s = "cancelled", loop.time()
        try:
            outcome = await self._make_call(call, idempotency_key)
            kind = outcome.kind if isinstance(outcome, _Failure) else "ok"
        finally:
            self.observer.tool_called(call.name, kind, loop.time() - since_s)
        return _build_error_result(call, outcome) if isinstance(outcome, _Failure) else outcome

    async def _make_call(self, call: ToolCall, key: str) -> ToolResult | _Failure:
        tool = self._tools.get(call.name)
        if tool is None:
            return _Failure(kind=_UNKNOWN_TOOL, message=describe_unknown(call.name, self._tools))
        try:
            arguments = parse_arguments(call.arguments_json)
        except ValueError as error:
            schema = to_json_text(tool.parameters)
            return _Failure(kind=_INVALID_ARGUMENTS, message=f"{error}. The schema is: {schema}")
        if violations := _find_violations(tool, arguments):
            return _Failure(kind=_INVALID_ARGUMENTS, message=_describe_violations(violations, tool))
        outcome = await self._invoke(tool, arguments, call, key)
        return outcome if isinstance(outcome, _Failure) else self._keep_result(tool, call, outcome)

    def _keep_result(self, tool: Tool, call: ToolCall, value: object) -> ToolResult | _Failure:
        most = self.limits.max_kept_bytes
        if tool.max_output_bytes is not None:
            most = min(most, tool.max_output_bytes)
        try:
            text, is_cut = cut_to_bytes(to_json_text(value), most)
        except NotJsonError:
            _log.warning("tool returned what is no JSON", extra={"tool": tool.name})
            message = f"the tool {show(tool.name)} returned something that is no JSON; it needs its author"
            return _Failure(kind="failed", message=message)
        if tool.name == READ_TOOL_RESULT:
            return ToolResult(call_id=call.call_id, result_json=text)
        self._memory.keep(call.call_id, text)
        if self.keeps_whole:
            return ToolResult(call_id=call.call_id, result_json=text)
        shown_bytes = self.limits.max_shown_bytes
        preview = to_preview(text, handle=call.call_id, most_bytes=shown_bytes, is_cut=is_cut)
        return ToolResult(call_id=call.call_id, result_json=preview)

    async def _invoke(self, tool: Tool, arguments: Json, call: ToolCall, key: str) -> object:
        """Return the tool's result, or a failure if the time-out passes first.

        The tool runs in its own task; a task that does not stop when it is cancelled is abandoned.
        """
        timeout_s = self.limits.timeout_s if tool.timeout_s is None else tool.timeout_s
        context = ToolContext(
            call_id=call.call_id, timeout_s=timeout_s, execution_id=self.execution_id, idempotency_key=key
        )
        work = asyncio.create_task(_run_tool(tool, arguments, context), name=f"tool {tool.name} {call.call_id}")
        try:
            done, _ = await asyncio.wait({work}, timeout=timeout_s)
        except asyncio.CancelledError:
            await _stop(work, tool)
            raise
        if done:
            return work.result()
        await _stop(work, tool)
        message = f"the tool {show(tool.name)} took longer than {timeout_s:g} s and was stopped"
        return _Failure(kind="timeout", message=message)


async def _run_tool(tool: Tool, arguments: Json, context: ToolContext) -> object:
    """Return the tool's result, or a failure if it raises.

    SystemExit and KeyboardInterrupt also become failures, because they would end the whole process.
    """
    task = asyncio.current_task()
    try:
        return await tool.invoke(arguments, context)
    except ToolFailedError as error:
        kind = _INVALID_ARGUMENTS if isinstance(error, ArgumentsRefusedError) else "failed"
        return _Failure(kind=kind, message=_clean_message(str(error)))
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        _log.exception("tool cancelled itself", extra={"tool": tool.name})
    except BaseException:  # noqa: BLE001 - as the docstring says
        _log.exception("tool failed", extra={"tool": tool.name})
    message = f"the tool {show(tool.name)} failed; the cause is in the server's log. Try another way"
    return _Failure(kind="failed", message=message)


async def _stop(work: asyncio.Task[object], tool: Tool) -> None:
    """Cancel `work` and wait a short time while it cleans up."""
    work.cancel()
    await asyncio.wait({work}, timeout=_UNWINDING_S)
    if not work.done():
        _log.error("tool left behind: it does not stop when it is cancelled", extra={"tool": tool.name})


def refuse_call(call: ToolCall, kind: str, message: str) -> ToolResult:
    """Return the error result of a call that is refused; `kind` is for programs, `message` for the model."""
    return _build_error_result(call, _Failure(kind=kind, message=message))


def has_failed(result: ToolResult) -> bool:
    """Return whether a tool was called and could not do its work; a refused call did not fail."""
    if not result.is_error:
        return False
    try:
        return parse_arguments(result.result_json).get("error") not in _REFUSALS
    except ValueError:
        return True


def read_failure(result: ToolResult | None) -> str:
    """Return what the error of a failed call says, for people: at most 300 characters, else empty."""
    try:
        said = parse_arguments(result.result_json).get("message") if result is not None and result.is_error else ""
    except ValueError:
        return ""
    return " ".join(said.split())[:_MAX_SAID_CHARACTERS] if isinstance(said, str) else ""


def _find_violations(tool: Tool, arguments: Json) -> Sequence[Violation]:
    try:
        return tool.violations(arguments)
    except Exception:  # noqa: BLE001 - a third party's check must not end the run
        _log.exception("arguments could not be checked", extra={"tool": tool.name})
        return (Violation(field="", description="could not be checked against the tool's schema"),)


def _build_error_result(call: ToolCall, failure: _Failure) -> ToolResult:
    text = to_error_text(failure.kind, failure.message[:_MAX_MESSAGE_CHARACTERS])
    return ToolResult(call_id=call.call_id, result_json=text, is_error=True)


def describe_unknown(name: str, tools: Collection[str]) -> str:
    """Return what the model is told that called `name` where there are only `tools`.

    The tool that reads results is not among those named: models call what is, before there is anything to read.
    """
    close = difflib.get_close_matches(name, [*tools], n=1) if TOOL_NAME.fullmatch(name) else []
    hint = f"; did you mean {close[0]!r}?" if close else "."
    names = sorted({*tools} - {READ_TOOL_RESULT})
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"there is no tool {show(name)}{hint} Tools are: {', '.join(names[:_MAX_NAMES])}{more}"


def _describe_violations(violations: Sequence[Violation], tool: Tool) -> str:
    found = "; ".join(f"{one.field or 'the arguments'} {one.description}" for one in violations)
    schema = to_json_text(tool.parameters)
    return f"the arguments do not fit: {found}. Correct them and call again. The schema is: {schema}"


def _clean_message(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:2_000] or "the tool failed and did not say why"


def require_tool(tool: object) -> Tool:
    """Return `tool` if it is a valid tool.

    Raises:
        InternalError: `tool` is not valid; the text is for the author of the tool.
    """
    if not isinstance(tool, Tool) or not TOOL_NAME.fullmatch(tool.name):
        raise InternalError(f"{type(tool).__name__} is no tool, or its name does not match {TOOL_NAME.pattern}")
    return tool


INSTALLED_TOOLS: Final = PluginGroup(
    group="reasond.tools",
    noun="tool",
    setting="[tools] enabled",
    require=require_tool,
    reserved=(HttpGet.name, READ_TOOL_RESULT),
)


class ToolServer(Protocol):
    """Tools of another program over a connection that may be lost and restored."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that are known now."""

    async def start(self) -> None:
        """Connect and keep connected; return when the tools are known or the time-out has passed."""

    async def aclose(self) -> None:
        """Disconnect."""


class Tools:
    """The `ToolSource` of a server: its own tools and those of tool servers, which `start` connects.

    Args:
        tools: tools that are always offered.
        servers: further tools; a run is offered those that are known when it begins.
        limits: limits of all tools.
        observer: receives every call.

    Raises:
        SettingsError: two tools have one name.
    """

    def __init__(
        self,
        *,
        tools: Iterable[Tool] = (),
        servers: Sequence[ToolServer] = (),
        limits: ToolLimits | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._tools = tuple(tools)
        self._servers = tuple(servers)
        self._limits = limits or ToolLimits()
        names = [tool.name for tool in self._tools]
        for name in names:
            if names.count(name) > 1 or name == READ_TOOL_RESULT:
                raise SettingsError(f"Two tools are named {name!r}", remedy="Remove one from [tools] enabled.")

    @property
    def names(self) -> Sequence[str]:
        """The names of the tools that are known now, sorted."""
        return sorted(tool.name for tool in self._collect_tools())

    def open_toolbox(
        self, *, max_calls: int | None, execution_id: str = "", also: Sequence[Tool] = (), keeps_whole: bool = False
    ) -> RunToolbox:
        """Return the tools for one run; later changes do not affect it. See `ToolSource`."""
        return RunToolbox(
            tools=(*self._collect_tools(), *also),
            keeps_whole=keeps_whole,
            limits=self._limits,
            max_calls=max_calls,
            execution_id=execution_id,
            observer=self._observer,
        )

    async def start(self) -> None:
        """Connect all tool servers concurrently; a server that is down raises no error."""
        await asyncio.gather(*(server.start() for server in self._servers))

    async def aclose(self) -> None:
        """Disconnect them."""
        await asyncio.gather(*(server.aclose() for server in self._servers))

    def _collect_tools(self) -> Sequence[Tool]:
        known = {tool.name: tool for server in self._servers for tool in server.tools}
        # The operator's own tools come first: a tool server must not replace one of them.
        return tuple((known | {tool.name: tool for tool in self._tools}).values())
