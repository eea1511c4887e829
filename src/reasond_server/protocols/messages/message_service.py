"""Messages of Anthropic's clients: what the services give, as blocks, whole or in frames.

The steps are thinking, which is told only to a client that asks for it. A message with tools of the client is a turn: a
hand-off ends with `tool_use`, and the ids of its calls name the turn and the hand-off, as in chats.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.conversations import seal
from reasond_server.protocols.followed_runs import AnswerTeller, FollowedRun, keep_reasoning
from reasond_server.protocols.messages.message_params import MessageParams, read_message_request
from reasond_server.protocols.openai_requests import Asked, write_input
from reasond_server.types import Cursor, FinishReason, Heartbeat, Principal, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
    from datetime import datetime

    from reasond_server.llm.model import TokenCounter
    from reasond_server.protocols.asked_runs import AskedRuns, Attachments
    from reasond_server.protocols.chat.chat_params import ModelParams
    from reasond_server.protocols.message_parts import DocumentTexts
    from reasond_server.protocols.model_catalogue import ModelCatalogue


_STOPS: Final = {
    FinishReason.ANSWERED: "end_turn",
    FinishReason.ANSWERED_UNTAGGED: "end_turn",
    FinishReason.CONTENT_FILTERED: "refusal",
}
PING: Final = frame_event(b'{"type":"ping"}', name="ping")


class Messages:
    """Answers messages for verified callers; `now` dates the models, `counter` counts tokens of input."""

    def __init__(
        self,
        *,
        runs: AskedRuns,
        catalogue: ModelCatalogue,
        counter: TokenCounter,
        attachments: Attachments,
        documents: DocumentTexts,
        now: Callable[[], datetime],
    ) -> None:
        self._runs = runs
        self._catalogue = catalogue
        self._counter = counter
        self._attachments = attachments
        self._documents = documents
        self._created = now().strftime("%Y-%m-%dT%H:%M:%SZ")

    async def create(self, caller: Principal, params: MessageParams) -> dict[str, Any]:
        """Work on a message to its answer, or to calls of its client's tools, and return it.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        asked = await self._read(caller, params)
        run = FollowedRun(has_texts=True)
        await self._runs.work(caller, asked, run, may_return=bool(asked.request_id))
        kept, cut = keep_reasoning(run.texts if params.shows_thinking else [])
        content = [build_thinking(text) for text in kept]
        content += [{"type": "text", "text": text} for text in (*run.said, run.content) if text]
        content += [build_call(call) for call in run.list_calls()]
        own = await self._end(caller, asked, run)
        return {
            **describe_message(run.execution_id, params.model),
            "content": content,
            **describe_end(run),
            "usage": build_usage(run.usage),
            "reasond": {**own, "warnings": [*own["warnings"], *cut]},
        }

    async def stream(
        self, caller: Principal, params: MessageParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Work as `create` does, and yield the frames of the stream; who leaves it may come back for the run.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        asked = await self._read(caller, params)
        run, frames = FollowedRun(has_texts=True), MessageFrames()
        teller = AnswerTeller(frames, shows_thinking=params.shows_thinking, shows_deltas=asked.include_deltas)
        followed = self._runs.follow(caller, asked, include_deltas=True, may_return=True)
        async with aclosing(followed) as events:
            async for event in events:
                if not run.execution_id:
                    run.execution_id = event.execution_id
                    yield frames.begin(event.execution_id, params.model)
                if isinstance(event.event, Heartbeat):
                    yield PING
                for frame in teller.tell(run, event.event):
                    yield frame
        calls = run.list_calls()
        own = await self._end(caller, asked, run)
        for block in (teller.end(run), *map(frames.call, calls), frames.end(run, own)):
            for frame in block:
                yield frame

    async def count(self, caller: Principal, params: MessageParams) -> dict[str, Any]:
        """Return how many tokens a request has, as the model's counter has them; nothing is started.

        Raises:
            ReasondError: the request is refused.
        """
        text = write_input(await self._read(caller, params))
        return {"input_tokens": await asyncio.to_thread(self._counter.count_text, text)}

    async def list_models(self, caller: Principal, params: ModelParams) -> dict[str, Any]:
        """Return the models that `caller` may use, or the one that `params` names.

        Raises:
            StrategyNotFoundError: there is no such model, or the caller may not use it.
        """
        found = [self._describe_model(name) for name in self._catalogue.list_for(caller, params.model)]
        if params.model:
            return found[0]
        ends = (
            {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {"first_id": None, "last_id": None}
        )
        return {"data": found, "has_more": False, **ends}

    def _describe_model(self, name: str) -> dict[str, Any]:
        return {"type": "model", "id": name, "display_name": name, "created_at": self._created}

    async def _read(self, caller: Principal, params: MessageParams) -> Asked:
        asked = read_message_request(await self._documents.unfold(caller, params, "messages"), self._catalogue)
        key = await self._attachments.find_request_id(caller, params.attach_key, is_first=params.is_first)
        return replace(asked, request_id=params.reasond.request_id or key)

    async def _end(self, caller: Principal, asked: Asked, run: FollowedRun) -> dict[str, Any]:
        """Note that the message is whole, and return what Anthropic has no place for."""
        unused = await self._runs.find_unused_changes(caller, asked, run.execution_id)
        await self._attachments.settle(caller, run.execution_id, asked.request_id, is_forgotten=False)
        return run.describe((*asked.warnings, *unused))


def describe_message(execution_id: str, model: str) -> dict[str, Any]:
    """Return a message as it begins."""
    return {
        "id": f"msg_{execution_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def describe_end(run: FollowedRun) -> dict[str, Any]:
    """Return why a message ends; an answer that something has cut short ends by its length."""
    reason = run.finish_reason
    stop = "tool_use" if reason is None else _STOPS.get(reason, "max_tokens")
    return {"stop_reason": "stop_sequence" if run.stop_sequence else stop, "stop_sequence": run.stop_sequence}


def build_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage by Anthropic's names: what came from a cache is no part of the other input."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
    }


def build_thinking(text: str) -> dict[str, Any]:
    """Return a block of thinking; its signature brings it back."""
    return {"type": "thinking", "thinking": text, "signature": seal(text)}


def build_call(call: ToolCall) -> dict[str, Any]:
    """Return the block of a call."""
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": from_json(call.arguments_json or "{}")}


class MessageFrames:
    """Writes the frames of one stream; blocks follow each other, and a thinking may come in pieces."""

    def __init__(self) -> None:
        self._place = 0
        self._thought: list[str] = []
        self._is_saying = False

    def begin(self, execution_id: str, model: str) -> bytes:
        """Return the first frame."""
        return _frame("message_start", message=describe_message(execution_id, model))

    def think(self, text: str) -> Iterator[bytes]:
        """Yield a piece of thinking, in a block that is open, or opens."""
        if not self._thought:
            yield self._open({"type": "thinking", "thinking": "", "signature": ""})
        self._thought.append(text)
        yield self._write({"type": "thinking_delta", "thinking": text})

    def end_thinking(self) -> Iterator[bytes]:
        """Yield the end of the thinking, if one is open."""
        if self._thought:
            sealed = seal("".join(self._thought))
            self._thought.clear()
            yield self._write({"type": "signature_delta", "signature": sealed})
            yield self._close()

    def say(self, text: str, *, is_whole: bool = True) -> Iterator[bytes]:
        """Yield a piece of text, in a block that is open, or opens; and its end after the last one."""
        if not self._is_saying:
            yield from self.end_thinking()
            yield self._open({"type": "text", "text": ""})
        if text:
            yield self._write({"type": "text_delta", "text": text})
        self._is_saying = not is_whole
        if is_whole:
            yield self._close()

    def call(self, call: ToolCall) -> Iterator[bytes]:
        """Yield a block of a call."""
        yield self._open({**build_call(call), "input": {}})
        yield self._write({"type": "input_json_delta", "partial_json": call.arguments_json or "{}"})
        yield self._close()

    def end(self, run: FollowedRun, own: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the last frames; `own` is what Anthropic has no place for."""
        yield _frame("message_delta", delta=describe_end(run), usage=build_usage(run.usage), reasond=own)
        yield _frame("message_stop")

    def _open(self, block: Mapping[str, Any]) -> bytes:
        return _frame("content_block_start", index=self._place, content_block=block)

    def _write(self, delta: Mapping[str, Any]) -> bytes:
        return _frame("content_block_delta", index=self._place, delta=delta)

    def _close(self) -> bytes:
        self._place += 1
        return _frame("content_block_stop", index=self._place - 1)


def _frame(kind: str, **members: object) -> bytes:
    return frame_event(to_json({"type": kind, **members}, inf_nan_mode="null"), name=kind)
