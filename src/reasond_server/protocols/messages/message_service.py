"""Messages of Anthropic's clients: what the services give, as blocks of thinking, text and calls of tools.

The steps are thinking, which is told only to a client that asks for it. A message with tools of the client is a turn: a
hand-off ends with `tool_use`, and the ids of its calls name the turn and the hand-off, as in chats.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reasond_server.protocols.followed_runs import FollowedRun, keep_reasoning
from reasond_server.protocols.live_answers import AnswerTeller
from reasond_server.protocols.messages.message_json import (
    PING,
    MessageFrames,
    build_call,
    build_thinking,
    build_usage,
    describe_end,
    describe_message,
)
from reasond_server.protocols.messages.message_params import MessageParams, read_message_request
from reasond_server.protocols.openai_requests import Asked, write_input
from reasond_server.types import Cursor, Heartbeat, Principal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from datetime import datetime

    from reasond_server.llm.model import TokenCounter
    from reasond_server.protocols.asked_runs import AskedRuns
    from reasond_server.protocols.attachments import Attachments
    from reasond_server.protocols.chat.chat_params import ModelParams
    from reasond_server.protocols.document_parts import DocumentTexts
    from reasond_server.protocols.model_catalogue import ModelCatalogue


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
