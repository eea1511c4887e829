"""Chat completions and the list of models: what the service gives, as OpenAI's JSON.

The answer is the content; the steps are reasoning, under both names that clients read: `reasoning_content` and
`reasoning`. What OpenAI has no place for is in the member `reasond`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from reasond_server.errors.request import StrategyNotFoundError
from reasond_server.http_api.json_mapping import describe_step
from reasond_server.llm.model import find_image_tokens
from reasond_server.protocols.chat.chat_params import read_chat
from reasond_server.protocols.chat.completion_json import (
    BETWEEN,
    DONE,
    HEARTBEAT,
    ChunkFrames,
    build_usage_json,
    describe_completion,
    keep_reasoning,
    map_finish_reason,
)
from reasond_server.protocols.chat.turn_chats import is_turn
from reasond_server.types import ExecutionStarted, Heartbeat, Iteration, Result, TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import datetime

    from reasond_server.http_api.http_calls import Cursor
    from reasond_server.protocols.chat.chat_params import ChatParams, ChatTask, ModelParams
    from reasond_server.protocols.chat.turn_chats import TurnChats
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import Principal, StreamEvent


class Completions:
    """Answers chats for verified callers, those with tools of the client as turns; `now` dates the models."""

    def __init__(
        self, *, service: ReasoningService, turns: TurnChats, catalogue: ModelCatalogue, now: Callable[[], datetime]
    ) -> None:
        self._service = service
        self._turns = turns
        self._catalogue = catalogue
        self._created = int(now().timestamp())

    async def create(self, caller: Principal, params: ChatParams) -> dict[str, Any]:
        """Execute the task of a chat, and return its completion.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        if is_turn(params):
            return await self._turns.create(caller, params)
        asked = self._read(params)
        view = await self._service.execute(caller, asked.task, request_id=asked.request_id)
        texts = [text for step in view.steps if (text := describe_step(step))]
        kept, cut = keep_reasoning(texts)
        reasoning = BETWEEN.join(kept)
        message = {
            "role": "assistant",
            "content": _choose_content(view.result),
            "refusal": None,
            "reasoning_content": reasoning,
            "reasoning": reasoning,
        }
        finish = map_finish_reason(view.result.finish_reason)
        created = view.execution.create_time
        return {
            **describe_completion(view.result.execution_id, created, params.model, kind="chat.completion"),
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": build_usage_json(view.result.metrics.usage),
            "reasond": _own_json(view.result, (*asked.warnings, *cut)),
        }

    async def stream(
        self, caller: Principal, params: ChatParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Execute the task of a chat, and yield the frames of its stream; closing it cancels the run.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        if is_turn(params):
            async with aclosing(self._turns.stream(caller, params)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        asked = self._read(params)
        writer = ChunkWriter(model=params.model, warnings=asked.warnings, includes_usage=params.includes_usage)
        events = self._service.stream(
            caller, asked.task, request_id=asked.request_id, include_deltas=asked.include_deltas
        )
        async with aclosing(events):
            async for event in events:
                if frames := writer.write(event):
                    yield frames
        yield DONE

    async def list_models(self, caller: Principal, params: ModelParams) -> dict[str, Any]:
        """Return the models that `caller` may use, or the one that `params` names.

        Raises:
            StrategyNotFoundError: there is no such model, or the caller may not use it.
        """
        names = self._catalogue.list_for(caller)
        if params.model:
            self._catalogue.find(params.model)
            if params.model not in names:
                raise StrategyNotFoundError("The token does not permit this model")
            return self._model_json(params.model)
        return {"object": "list", "data": [self._model_json(name) for name in names]}

    def _model_json(self, name: str) -> dict[str, Any]:
        model = self._service.kind.models.own
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "reasond",
            "context_window": model.context_window,
            "input_modalities": ["text", *(["image"] if find_image_tokens(model) else [])],
            "output_modalities": ["text"],
            "supports": ["chat.completions", "responses", "tools", "json_schema", "streaming"],
        }

    def _read(self, params: ChatParams) -> ChatTask:
        return read_chat(params, self._catalogue)


class ChunkWriter:
    """Writes the events of one execution as chunks."""

    def __init__(self, *, model: str, warnings: Sequence[str], includes_usage: bool) -> None:
        self._frames = ChunkFrames(model=model, includes_usage=includes_usage)
        self._warnings = warnings
        self._told_step = -1

    def write(self, event: StreamEvent) -> bytes:
        """Return the frames of one event; empty if it has nothing to tell."""
        found = event.event
        if isinstance(found, TextDelta):
            self._told_step = found.iteration_index
            return self._frames.reason(found.text)
        if isinstance(found, Iteration):
            # Whoever reads the text as it is written does not need it again.
            is_told = found.index == self._told_step
            text = "" if is_told else describe_step(found)
            return self._frames.reason(text + BETWEEN) if text or is_told else b""
        if isinstance(found, Heartbeat):
            return HEARTBEAT
        if isinstance(found, ExecutionStarted):
            return self._frames.begin(event)
        return self._end(found) if isinstance(found, Result) and found.error is None else b""

    def _end(self, result: Result) -> bytes:
        """Return the answer, the chunk that ends it, and the usage if it was asked for."""
        content = _choose_content(result)
        return b"".join(
            (
                self._frames.choose({"content": content}) if content else b"",
                self._frames.choose(
                    {}, map_finish_reason(result.finish_reason), reasond=_own_json(result, self._warnings)
                ),
                self._frames.tell_usage(result.metrics.usage),
            )
        )


def _choose_content(result: Result) -> str:
    """Return the answer; where a schema was asked for, the JSON that satisfies it."""
    return result.answer_json or result.answer


def _own_json(result: Result, warnings: Sequence[str]) -> dict[str, Any]:
    """Return what OpenAI has no place for."""
    return {
        "execution_id": result.execution_id,
        "strategy": result.strategy_used,
        "strategy_source": result.strategy_source.value,
        "finish_reason": result.finish_reason.value if result.finish_reason else None,
        "model": result.model,
        "model_calls": result.metrics.usage.model_calls,
        "usage_source": result.metrics.usage.source.value,
        "warnings": [*result.warnings, *warnings],
    }
