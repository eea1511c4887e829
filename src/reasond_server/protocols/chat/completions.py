"""Chat completions and the list of models: what the services give, as OpenAI's JSON, whole or in chunks.

The answer is the content; the steps are reasoning, under both names that clients read: `reasoning_content` and
`reasoning`. What OpenAI has no place for is in the member `reasond`. A chat with tools of the client is a turn: a
hand-off is an answer with `tool_calls`, and the ids of its calls name the turn and the hand-off, so that their results
cannot reach another one, and a repeated request runs nothing twice.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.base.asyncio_tasks import interleave
from reasond_server.http_api.exchange import frame_event
from reasond_server.llm.model import find_image_tokens
from reasond_server.protocols.chat.chat_params import ChatParams, ModelParams, read_chat
from reasond_server.protocols.conversations import BETWEEN, find_custom_names, read_text
from reasond_server.protocols.followed_runs import AnswerTeller, FollowedRun, keep_reasoning, write_usage
from reasond_server.protocols.openai_endpoint import DONE, HEARTBEAT
from reasond_server.types import NOTHING, Cursor, FinishReason, Heartbeat, Principal, StreamEvent, Task, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping, Sequence
    from datetime import datetime

    from reasond_server.protocols.asked_runs import AskedRuns
    from reasond_server.protocols.message_parts import DocumentTexts
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.reasoning.service import ReasoningService


_LENGTH: Final = "length"
_FINISHES: Final = {
    FinishReason.ANSWERED: "stop",
    FinishReason.ANSWERED_UNTAGGED: "stop",
    FinishReason.CONTENT_FILTERED: "content_filter",
}


class Completions:
    """Answers chats for verified callers; `now` dates the models."""

    def __init__(
        self,
        *,
        service: ReasoningService,
        runs: AskedRuns,
        catalogue: ModelCatalogue,
        documents: DocumentTexts,
        now: Callable[[], datetime],
    ) -> None:
        self._service = service
        self._runs = runs
        self._catalogue = catalogue
        self._documents = documents
        self._created = int(now().timestamp())

    async def create(self, caller: Principal, params: ChatParams) -> dict[str, Any]:
        """Work on a chat to its answer, or to calls of its client's tools, and return the completion.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        asked = read_chat(await self._documents.unfold(caller, params, "messages"), self._catalogue)
        runs = [FollowedRun() for _ in range(asked.answers)]
        created = await self._work_on_all(caller, asked, runs)
        run = runs[0]
        unused = await self._runs.find_unused_changes(caller, asked, run.execution_id)
        choices, cut = [], list[str]()
        for place, each in enumerate(runs):
            choice, added = _write_choice(place, each, find_custom_names(params.tools or ()))
            choices.append(choice)
            cut += added
        return {
            **describe_completion(run.execution_id, created, params.model, kind="chat.completion"),
            "choices": choices,
            "usage": write_usage(sum((each.usage for each in runs), NOTHING), "prompt", "completion"),
            "reasond": run.describe((*asked.warnings, *unused, *cut)),
        }

    async def _work_on_all(self, caller: Principal, asked: Asked, runs: Sequence[FollowedRun]) -> datetime:
        """Work on several answers at the same time; return when the first execution began."""
        if len(runs) == 1:
            return await self._runs.work(caller, asked, runs[0])
        working = [
            asyncio.create_task(self._runs.work(caller, *each)) for each in zip(_split(asked), runs, strict=True)
        ]
        try:
            return (await asyncio.gather(*working))[0]
        finally:
            for each in working:
                each.cancel()

    async def stream(
        self, caller: Principal, params: ChatParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Work as `create` does, and yield the frames of the stream; closing it cancels the runs.

        Raises:
            ReasondError: the request is refused, or a run failed.
        """
        asked = read_chat(await self._documents.unfold(caller, params, "messages"), self._catalogue)
        runs = [FollowedRun() for _ in range(asked.answers)]
        frames = ChunkFrames(model=params.model, includes_usage=params.includes_usage)
        is_live, custom = _is_live(asked, params), find_custom_names(params.tools or ())
        tellers = [
            AnswerTeller(
                ChoiceFrames(frames, place, run),
                shows_thinking=True,
                shows_deltas=asked.include_deltas,
                is_live=is_live,
            )
            for place, run in enumerate(runs)
        ]
        include_deltas = asked.include_deltas or is_live
        followed = [self._runs.follow(caller, one, include_deltas=include_deltas) for one in _split(asked)]
        async with aclosing(interleave(followed)) as events:
            async for place, event in events:
                run = runs[place]
                if event is None:
                    unused = await self._runs.find_unused_changes(caller, asked, run.execution_id)
                    calls = [write_call(call, custom) for call in run.list_calls()]
                    own = run.describe((*asked.warnings, *unused))
                    for frame in (*tellers[place].end(run), *_end(frames, place, run, calls, own)):
                        yield frame
                    continue
                if not run.execution_id:
                    run.execution_id = event.execution_id
                    yield frames.begin(place, event)
                if isinstance(event.event, Heartbeat):
                    yield HEARTBEAT
                for frame in tellers[place].tell(run, event.event):
                    yield frame
        if usage := frames.tell_usage(sum((each.usage for each in runs), NOTHING)):
            yield usage
        yield DONE

    async def list_models(self, caller: Principal, params: ModelParams) -> dict[str, Any]:
        """Return the models that `caller` may use, or the one that `params` names.

        Raises:
            StrategyNotFoundError: there is no such model, or the caller may not use it.
        """
        found = [self._build_model_json(name) for name in self._catalogue.list_for(caller, params.model)]
        return found[0] if params.model else {"object": "list", "data": found}

    def _build_model_json(self, name: str) -> dict[str, Any]:
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


def _split(asked: Asked) -> Sequence[Asked]:
    """Return what is asked once for each answer; each has a request id of its own."""
    if asked.answers == 1:
        return [asked]
    key = asked.request_id
    return [replace(asked, request_id=f"{key}-{place}" if key else "") for place in range(asked.answers)]


def _is_live(asked: Asked, params: ChatParams) -> bool:
    """Return whether the answer is told while it is written: where it is neither mended nor told with probabilities."""
    return isinstance(asked.source, Task) and asked.source.answer_schema is None and not params.logprobs


def _end(
    frames: ChunkFrames, place: int, run: FollowedRun, calls: Sequence[dict[str, Any]], own: Mapping[str, Any]
) -> Iterator[bytes]:
    """Yield the last chunks of a choice: its calls, and how it ended."""
    if calls:
        yield frames.choose(place, {"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]})
    yield frames.choose(place, {}, map_finish_reason(run.finish_reason), reasond=own)


def _write_choice(place: int, run: FollowedRun, custom: Container[str]) -> tuple[dict[str, Any], Sequence[str]]:
    """Return the choice at `place`, and a warning if it holds not all of the reasoning."""
    kept, cut = keep_reasoning(run.texts)
    reasoning, calls = BETWEEN.join(kept), [write_call(call, custom) for call in run.list_calls()]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": run.content or (None if calls else ""),
        "refusal": None,
        "reasoning_content": reasoning,
        "reasoning": reasoning,
        **({"tool_calls": calls} if calls else {}),
    }
    choice = {
        "index": place,
        "message": message,
        "logprobs": wrap_logprobs(run.logprobs),
        "finish_reason": map_finish_reason(run.finish_reason),
    }
    return choice, cut


class ChunkFrames:
    """Writes the chunks of one stream; the first one of the choice at each `place` is `begin`."""

    def __init__(self, *, model: str, includes_usage: bool) -> None:
        self._model = model
        self._includes_usage = includes_usage
        self._head = b""

    def begin(self, place: int, event: StreamEvent) -> bytes:
        """Return the first chunk of a choice, which names its author; the first `event` has the id and the time."""
        about = describe_completion(event.execution_id, event.create_time, self._model, kind="chat.completion.chunk")
        self._head = self._head or to_json(about)[:-1]
        return self.choose(place, {"role": "assistant", "content": ""})

    def reason(self, place: int, text: str) -> bytes:
        """Return a chunk of reasoning, under both names that clients read."""
        return self.choose(place, {"reasoning_content": text, "reasoning": text})

    def choose(
        self,
        place: int,
        delta: Mapping[str, Any],
        finish: str | None = None,
        *,
        logprobs: object = None,
        **more: object,
    ) -> bytes:
        """Return a chunk with `delta` and the tokens of its content; `more` are members of its own."""
        choice = {"index": place, "delta": delta, "logprobs": wrap_logprobs(logprobs), "finish_reason": finish}
        return self._write({"choices": [choice], **({"usage": None} if self._includes_usage else {}), **more})

    def tell_usage(self, usage: Usage) -> bytes:
        """Return the chunk of the usage; empty if it was not asked for."""
        return (
            self._write({"choices": [], "usage": write_usage(usage, "prompt", "completion")})
            if self._includes_usage
            else b""
        )

    def _write(self, rest: dict[str, Any]) -> bytes:
        return frame_event(self._head + b"," + to_json(rest, inf_nan_mode="null")[1:])


class ChoiceFrames:
    """Writes the chunks of the choice at `place`: its thinking is reasoning, its text content."""

    def __init__(self, frames: ChunkFrames, place: int, run: FollowedRun) -> None:
        self._frames = frames
        self._place = place
        self._run = run
        self._has_thought = False
        self._is_next = False

    def think(self, text: str) -> Iterator[bytes]:
        """Yield a chunk of reasoning, apart from that of an earlier step."""
        yield self._frames.reason(self._place, BETWEEN + text if self._is_next else text)
        self._has_thought, self._is_next = True, False

    def end_thinking(self) -> Iterator[bytes]:
        """Yield nothing; what is thought from here on belongs to another step."""
        self._is_next = self._has_thought
        yield from ()

    def say(self, text: str, *, is_whole: bool = True) -> Iterator[bytes]:
        """Yield a chunk of content."""
        yield from self.end_thinking()
        if text:
            logprobs = self._run.logprobs if is_whole else None
            yield self._frames.choose(self._place, {"content": text}, logprobs=logprobs)


def describe_completion(execution_id: str, created: datetime, model: str, *, kind: str) -> dict[str, Any]:
    """Return the first members of a completion or of a chunk."""
    return {
        "id": f"chatcmpl-{execution_id}",
        "object": kind,
        "created": int(created.timestamp()),
        "model": model,
    }


def wrap_logprobs(tokens: object) -> object:
    """Return the tokens of a content as a choice has them; None if they were not asked for."""
    return None if tokens is None else {"content": tokens, "refusal": None}


def map_finish_reason(reason: FinishReason | None) -> str:
    """Return OpenAI's finish reason, None being calls; an answer that something has cut short ends by its length."""
    return "tool_calls" if reason is None else _FINISHES.get(reason, _LENGTH)


def write_call(call: ToolCall, custom: Container[str]) -> dict[str, Any]:
    """Return a call of a tool of the client; `custom` has the names of those that are called with a text."""
    if call.name in custom:
        made = {"name": call.name, "input": read_text(call.arguments_json)}
        return {"id": call.call_id, "type": "custom", "custom": made}
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
