"""Servers of turns for the benchmarks, over any store, with a model that calls tools in order and then answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from benchmarks.instant import InstantModel
from reasond_server.assembly.core import Core, assemble
from reasond_server.config import load
from reasond_server.llm.model import ChatModel, ChatRequest, Finished, ModelEvent, ModelFinish, Role, Text
from reasond_server.tools.execution import Tools
from reasond_server.types import Principal, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.eventlog.store import ExecutionStore

CALLER: Final = Principal(subject="bench", tenant="bench", permissions=frozenset({"admin"}))
ANSWER: Final = "done"


class CallingModel(InstantModel):
    """Calls one tool in each reply, in the order of `calls` (name, arguments as JSON), and then answers."""

    name = "calling"
    context_window = 32_768  # type: ignore[assignment]  # None in the class above
    has_native_tools = True

    def __init__(self, calls: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._calls = calls

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the next tool, or answer after the last one."""
        done = sum(message.role is Role.TOOL for message in request.messages)
        usage = Usage(input_tokens=512, output_tokens=16, model_calls=1)
        if done < len(self._calls):
            name, arguments = self._calls[done]
            yield ToolCall(call_id=f"call_{done}", name=name, arguments_json=arguments)
            yield Finished(reason=ModelFinish.TOOL_CALLS, usage=usage)
        else:
            yield Text(text=ANSWER)
            yield Finished(reason=ModelFinish.STOP, usage=usage)


@asynccontextmanager
async def open_core(
    model: ChatModel,
    *,
    store: ExecutionStore | None = None,
    tools: Sequence[Any] = (),
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[Core, None]:
    """Open reasond's core without a listener, over `store`, or in memory."""
    loaded = load(None, dict(settings or {})).settings
    core = assemble(loaded, model=model, store=store, tools=Tools(tools=tools))
    await core.tools.start()
    core.runner.begin()
    try:
        yield core
    finally:
        await core.runner.stop()
        await core.tools.aclose()
