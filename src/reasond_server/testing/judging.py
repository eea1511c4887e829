"""How `StrategyConformance` judges: what a wire can carry, what stands between fences, which places are looked at."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from reasond_server.context.tags import RESERVED_TAGS
from reasond_server.errors import ContextExhaustedError, ModelFailedError, ModelUnavailableError
from reasond_server.grpc_api.conversion import iteration_message, metrics_message
from reasond_server.testing.expectations import require
from reasond_server.testing.hostility import MARK
from reasond_server.testing.models import Reply
from reasond_server.types import Iteration, Metrics, Usage
from reasond_server.wire.json_kinds import kind_json
from reasond_server.wire.json_mapping import trace_items

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import Outcome, Step
    from reasond_server.testing.probing import Ran, Replier

_MOST_PLACES: Final = 40
_USAGE: Final = Usage(input_tokens=1, output_tokens=1, model_calls=1)


def carry_step(step: Step) -> None:
    """Convert a step for both wires."""
    iteration = Iteration(index=0, answer_found=step.answer_found, usage=_USAGE, elapsed_s=0.0, detail=step.detail)
    iteration_message(iteration)
    json.dumps([kind_json(step.detail), trace_items(iteration)], allow_nan=False)
    carry_metrics(step)


def carry_metrics(event: Step | Outcome) -> None:
    """Convert the metrics of an event for both wires."""
    if event.metrics is not None:
        json.dumps(kind_json(event.metrics), allow_nan=False)
    metrics_message(Metrics(usage=_USAGE, execution_time_s=0.0, strategy_specific=event.metrics))


def places(count: int) -> list[int]:
    """Return the places from 1 to `count`, of many the first and the last ones."""
    if count <= _MOST_PLACES:
        return list(range(1, count + 1))
    half = _MOST_PLACES // 2
    return [*range(1, half + 1), *range(count - half + 1, count + 1)]


def always(reply: Reply) -> Replier:
    """Return what gives `reply` to every call."""
    return lambda _: reply


def at(place: int, odd: Reply, usual: Replier) -> Replier:
    """Return what gives `odd` to call `place`, counted from 1, and to every other the usual reply."""
    made = 0

    def reply(request: ChatRequest) -> str | Reply:
        nonlocal made
        made += 1
        return odd if made == place else usual(request)

    return reply


def broken() -> tuple[Reply, ...]:
    """Return replies that end with an error, before any text and after some."""
    return (
        Reply(error=ModelUnavailableError("The model cannot be reached"), error_after=0),
        Reply(text="half a thought that", error=ModelFailedError("The model broke off"), error_after=6),
        Reply(error=ContextExhaustedError("The prompt is too long for the model"), error_after=0),
    )


async def first_of(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    """Wait until the event is set or the task is done."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def require_fenced(request: ChatRequest, ran: Ran) -> None:
    """Check that what the client wrote stands between marks of the run and poses as none of the frame."""
    for message in request.messages:
        if MARK not in message.content:
            continue
        require(bool(ran.nonces), "the prompt shows the query without a fence: no mark was drawn from new_nonce")
        first, last = message.content.index(MARK), message.content.rindex(MARK)
        is_between = any(nonce in message.content[:first] and nonce in message.content[last:] for nonce in ran.nonces)
        require(is_between, "the prompt shows the query outside the fences that carry the run's mark")
        raw = [f"</{tag}>" for tag in RESERVED_TAGS if f"</{tag}>" in message.content[first:last]]
        require(not raw, f"a tag of the query reached the prompt as it was written: {', '.join(raw)}")
