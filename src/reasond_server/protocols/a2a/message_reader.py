"""What a message of A2A asks for: a task of reasoning, a turn, or the settling of calls that a turn waits for."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError, TurnNotAwaitingError
from reasond_server.http_api.params import read_params
from reasond_server.protocols.a2a.a2a_errors import CONTENT_TYPE_NOT_SUPPORTED, A2aError
from reasond_server.protocols.a2a.a2a_params import OwnParams, ResultParams, SettlementParams
from reasond_server.protocols.conversations import BETWEEN, ConversationBuilder
from reasond_server.protocols.openai_requests import (
    Asked,
    RequestInputs,
    plan,
    read_bounds,
    read_offer,
    require_question,
)
from reasond_server.types import NO_BUDGET, Image, ToolResult
from reasond_server.types.turns import CallKind, Decision, Reentered, TurnReentry, TurnStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.protocols.a2a.a2a_params import A2aMessageParams, PartParams, SendParams
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.types import Budget, HistoryMessage, Principal
    from reasond_server.types.turns import HandedOff

_USER: Final = "ROLE_USER"
_IMAGES: Final = "image/"
_TEXTS: Final = ("text", "text/", "application/json")
_SETTLE: Final = (
    "Send a data part {toolResults: [{callId, result}], etag} for all calls that the task's status message names; a "
    "text alone settles a single call."
)


def read_own(given: object) -> OwnParams:
    """Return our own parameters in the metadata.

    Raises:
        InvalidRequestError: they are not valid.
    """
    if not isinstance(given, dict):
        raise InvalidRequestError.of(Violation(field="metadata", description="must have an object for our extension"))
    return read_params(OwnParams, given)


def require_generation(own: OwnParams, generation: int) -> None:
    """Refuse a request that was made for another state of its task.

    Raises:
        EtagMismatchError: the task has gone on.
    """
    wanted = own.if_generation_match
    if wanted is not None and wanted != generation:
        raise EtagMismatchError(
            f"The task has the generation {generation}, not {wanted}", remedy="Read the task, and decide again."
        )


def read_task(
    params: SendParams,
    catalogue: ModelCatalogue,
    caller: Principal,
    earlier: Sequence[HistoryMessage],
    *,
    budget: Budget,
) -> Asked:
    """Return what a message asks for that names no task; `earlier` was said before, `budget` bounds it if it does not.

    Raises:
        ReasondError: it asks for nothing that can be done here.
    """
    own = read_own(params.own)
    text, images = _read_content(params.message)
    builder = ConversationBuilder(earlier)
    builder.instruct(own.system)
    builder.add_user(text, images)
    dialogue = builder.build()
    offer, bounds = read_offer(own.tools, own.tool_choice), read_bounds(own)
    if offer.problems:
        raise InvalidRequestError.of(*offer.problems)
    inputs = RequestInputs(
        model=f"reasond/{own.strategy}" if own.strategy else "reasond",
        system=dialogue.system,
        question=require_question(dialogue, "message.parts"),
        own=own,
        offer=offer,
        schema=own.answer_schema,
        budget=budget if bounds == NO_BUDGET else bounds,
        sampling={},
    )
    asked = plan(inputs, catalogue)
    source = replace(asked.source, echo_json=_write_echo(params.message, asked.warnings))
    if isinstance(source, TurnStart):
        source = replace(source, uses_server_tools=own.server_tools)
    return replace(
        asked,
        source=source,
        request_id=_name_request(caller, params.message.message_id),
    )


def read_reentry(params: SendParams, log: ExecutionLog, handoff: HandedOff | None) -> Asked:
    """Return the settling of the calls of a task; `handoff` is what it waits for now.

    A text that was sent before names the hand-off that it has settled then, so that the core knows it again.

    Raises:
        ReasondError: it does not say what came of the calls, or the task does not wait.
    """
    settlement = _find_settlement(params.message) or _settle_by_text(params.message, log, handoff)
    results = [
        ToolResult(
            call_id=one.call_id,
            result_json=to_json(one.error if (is_error := "error" in one.model_fields_set) else one.result).decode(),
            is_error=is_error,
        )
        for one in settlement.tool_results
    ]
    reentry = TurnReentry(
        turn_id=log.execution.execution_id,
        etag=settlement.etag,
        results=tuple(results),
        decisions=tuple(
            Decision(call_id=one.call_id, is_approved=one.approved, reason=one.reason) for one in settlement.decisions
        ),
        echo_json=_write_echo(params.message),
    )
    return Asked(source=reentry)


def _find_settlement(message: A2aMessageParams) -> SettlementParams | None:
    """Return the data part that settles calls; None without one."""
    for part in message.parts:
        if isinstance(part.data, dict) and part.data.keys() & {"toolResults", "decisions"}:
            return read_params(SettlementParams, part.data)
    return None


def _settle_by_text(message: A2aMessageParams, log: ExecutionLog, handoff: HandedOff | None) -> SettlementParams:
    """Return the settling of the one call that waits by what a message says."""
    settled = [logged.event for logged in log.events if isinstance(logged.event, Reentered)]
    same = [each for each in settled if read_echo(each.echo_json).get("messageId") == message.message_id]
    if not same and handoff is None:
        raise TurnNotAwaitingError(
            "The task does not wait for input", remedy="Read it, or send a message without a taskId."
        )
    names = [] if handoff is None else [one.call.call_id for one in handoff.calls if one.kind is CallKind.EXECUTE]
    if same:
        etag, names = same[0].etag, [*same[0].call_ids]
    elif handoff is not None:
        etag = handoff.etag if len(names) == len(handoff.calls) else ""
    if len(names) != 1 or not etag:
        raise InvalidRequestError("Request validation failed: message.parts must settle all calls", remedy=_SETTLE)
    result = ResultParams(call_id=names[0], result=_read_content(message)[0])
    return SettlementParams(etag=etag, tool_results=[result])


def read_echo(echo_json: str) -> dict[str, Any]:
    """Return what a log keeps of a message: the message itself, with `warnings` beside it; empty if it keeps none."""
    found = from_json(echo_json) if echo_json else {}
    return found if isinstance(found, dict) and "messageId" in found else {}


def _write_echo(message: A2aMessageParams, warnings: Sequence[str] = ()) -> str:
    said = message.model_dump(by_alias=True, exclude_defaults=True)
    return to_json({**said, **({"warnings": [*warnings]} if warnings else {})}).decode()


def _name_request(caller: Principal, message_id: str) -> str:
    """Return the request id of a message: clients choose ids that are unique among their own messages alone."""
    digest = hashlib.sha256(f"{message_id}\0{caller.subject}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"a2a-{digest}"


def _read_content(message: A2aMessageParams) -> tuple[str, Sequence[Image]]:
    """Return the text and the images of a message.

    Raises:
        InvalidRequestError: it is not the user's.
        A2aError: a part is of a kind that is not taken.
    """
    if message.role != _USER:
        text = f"must be {_USER!r}, got {show(message.role)}"
        raise InvalidRequestError.of(Violation(field="message.role", description=text))
    texts: list[str] = []
    images: list[Image] = []
    for part in message.parts:
        kind = part.media_type.partition(";")[0].strip().lower()
        if part.raw is not None and kind.startswith(_IMAGES):
            images.append(Image(media_type=kind, base64=part.raw))
        else:
            texts.append(_read_text(part, kind))
    return "\n".join(text for text in texts if text), images


def _read_text(part: PartParams, kind: str) -> str:
    """Return the text of a part: its own, that of a file, or data as JSON.

    Raises:
        A2aError: it has none.
    """
    if part.url is None and (not kind or kind.startswith(_TEXTS)):
        if part.text is not None:
            return part.text
        if part.raw is None:
            return to_json(part.data).decode()
        try:
            content = base64.b64decode(part.raw, validate=True).decode()
        except ValueError:
            content = ""
        if content:
            return f"File {show(part.filename)}:{BETWEEN}{content}" if part.filename else content
    what = "a url, and nothing is fetched here" if part.url is not None else show(part.media_type or "bytes")
    raise A2aError(
        CONTENT_TYPE_NOT_SUPPORTED,
        f"A part of the message is {what}",
        remedy="Send text, data, text files in UTF-8, or images as raw bytes with their mediaType.",
    )
