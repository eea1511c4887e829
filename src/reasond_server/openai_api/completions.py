"""Chat completions and the list of models: what the service gives, as OpenAI's JSON.

The answer is the content; the steps are reasoning, under both names that clients read: `reasoning_content` and
`reasoning`. What OpenAI has no place for is in the member `reasond`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.errors import StrategyNotFoundError
from reasond_server.http_api.event_frames import frame_event
from reasond_server.openai_api.chat_params import read_chat
from reasond_server.types import ExecutionStarted, FinishReason, Heartbeat, Iteration, Result, TextDelta
from reasond_server.wire.json_mapping import MAX_TRACE_BYTES, describe_step

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import datetime

    from reasond_server.http_api.jsonrpc_calls import Cursor
    from reasond_server.openai_api.chat_params import ChatParams, ChatTask, ModelParams
    from reasond_server.openai_api.model_catalogue import ModelCatalogue
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import Principal, StreamEvent, Usage

_LENGTH: Final = "length"
_FINISHES: Final = {
    FinishReason.ANSWERED: "stop",
    FinishReason.ANSWERED_UNTAGGED: "stop",
    FinishReason.CONTENT_FILTERED: "content_filter",
}
_BETWEEN: Final = "\n\n"
_HEARTBEAT: Final = b": heartbeat\n\n"
_DONE: Final = frame_event(b"[DONE]")


class Completions:
    """Answers chats for verified callers; `now` dates the models."""

    def __init__(self, *, service: ReasoningService, catalogue: ModelCatalogue, now: Callable[[], datetime]) -> None:
        self._service = service
        self._catalogue = catalogue
        self._created = int(now().timestamp())

    async def create(self, caller: Principal, params: ChatParams) -> dict[str, Any]:
        """Execute the task of a chat, and return its completion.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        asked = self._read(params)
        view = await self._service.execute(caller, asked.task, request_id=asked.request_id)
        texts = [text for step in view.steps if (text := describe_step(step))]
        kept, cut = _keep(texts, MAX_TRACE_BYTES)
        reasoning = _BETWEEN.join(kept)
        message = {
            "role": "assistant",
            "content": _content_of(view.result),
            "refusal": None,
            "reasoning_content": reasoning,
            "reasoning": reasoning,
        }
        finish = _finish_of(view.result)
        return {
            "id": _id_of(view.result.execution_id),
            "object": "chat.completion",
            "created": int(view.execution.create_time.timestamp()),
            "model": params.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": _usage_json(view.result.metrics.usage),
            "reasond": _own_json(view.result, (*asked.warnings, *cut)),
        }

    async def stream(
        self, caller: Principal, params: ChatParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Execute the task of a chat, and yield the frames of its stream; closing it cancels the run.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        asked = self._read(params)
        writer = ChunkWriter(model=params.model, warnings=asked.warnings, includes_usage=params.includes_usage)
        events = self._service.stream(
            caller, asked.task, request_id=asked.request_id, include_deltas=asked.include_deltas
        )
        async with aclosing(events):
            async for event in events:
                if frames := writer.write(event):
                    yield frames
        yield _DONE

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
        return {"id": name, "object": "model", "created": self._created, "owned_by": "reasond"}

    def _read(self, params: ChatParams) -> ChatTask:
        return read_chat(params, self._catalogue)


class ChunkWriter:
    """Writes the events of one execution as chunks."""

    def __init__(self, *, model: str, warnings: Sequence[str], includes_usage: bool) -> None:
        self._model = model
        self._warnings = warnings
        self._includes_usage = includes_usage
        self._head = b""
        self._told_step = -1

    def write(self, event: StreamEvent) -> bytes:
        """Return the frames of one event; empty if it has nothing to tell."""
        found = event.event
        if isinstance(found, TextDelta):
            self._told_step = found.iteration_index
            return self._reason(found.text)
        if isinstance(found, Iteration):
            # Whoever reads the text as it is written does not need it again.
            text = "" if found.index == self._told_step else describe_step(found)
            return self._reason(text + _BETWEEN) if text or found.index == self._told_step else b""
        if isinstance(found, Heartbeat):
            return _HEARTBEAT
        if isinstance(found, ExecutionStarted):
            about = {
                "id": _id_of(event.execution_id),
                "object": "chat.completion.chunk",
                "created": int(event.create_time.timestamp()),
                "model": self._model,
            }
            self._head = to_json(about)[:-1]
            return self._choose({"role": "assistant", "content": ""})
        return self._end(found) if isinstance(found, Result) and found.error is None else b""

    def _reason(self, text: str) -> bytes:
        return self._choose({"reasoning_content": text, "reasoning": text})

    def _choose(self, delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._chunk({"choices": [choice], **({"usage": None} if self._includes_usage else {}), **more})

    def _chunk(self, rest: dict[str, Any]) -> bytes:
        return frame_event(self._head + b"," + to_json(rest, inf_nan_mode="null")[1:])

    def _end(self, result: Result) -> bytes:
        """Return the answer, the chunk that ends it, and the usage if it was asked for."""
        frames = [
            self._choose({"content": content}) if (content := _content_of(result)) else b"",
            self._choose({}, _finish_of(result), reasond=_own_json(result, self._warnings)),
        ]
        if self._includes_usage:
            frames.append(self._chunk({"choices": [], "usage": _usage_json(result.metrics.usage)}))
        return b"".join(frames)


def _content_of(result: Result) -> str:
    """Return the answer; where a schema was asked for, the JSON that satisfies it."""
    return result.answer_json or result.answer


def _id_of(execution_id: str) -> str:
    return f"chatcmpl-{execution_id}"


def _finish_of(result: Result) -> str:
    """Return OpenAI's finish reason; an answer that something has cut short ends by its length."""
    return _FINISHES.get(result.finish_reason, _LENGTH) if result.finish_reason else _LENGTH


def _usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


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


def _keep(texts: list[str], most_bytes: int) -> tuple[list[str], Sequence[str]]:
    """Return as many of the first `texts` as fit, and a warning if some do not."""
    room = most_bytes
    for place, text in enumerate(texts):
        room -= len(text.encode("utf-8", "surrogatepass"))
        if room < 0:
            warning = (
                f"The reasoning holds the first {place} of {len(texts)} steps: all of them are over {most_bytes} "
                "bytes. Stream the completion to read every step."
            )
            return texts[:place], (warning,)
    return texts, ()
