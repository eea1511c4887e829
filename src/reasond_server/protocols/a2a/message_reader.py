"""What a message of A2A asks for: a task of reasoning, a turn, or the settling of calls that a turn waits for.

Messages are the JSON of A2A, checked against its protos before.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import from_json, to_json

from reasond_server.errors.base import show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError, TurnNotAwaitingError
from reasond_server.http_api.params import ReenterTurnParams, read_params
from reasond_server.protocols import openai_requests
from reasond_server.protocols.a2a.a2a_errors import A2aError, A2aReason
from reasond_server.protocols.conversations import ConversationBuilder
from reasond_server.protocols.message_parts import read_content
from reasond_server.protocols.wire_params import ReasondParams
from reasond_server.types import NO_BUDGET, Image
from reasond_server.types.turns import CallKind, Reentered, TurnStart
from reasond_server.webhooks.outbox import TaskReceiver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.types import Budget, HistoryMessage, Principal
    from reasond_server.types.turns import HandedOff

    Json = Mapping[str, Any]

EXTENSION: Final = "urn:reasond:reasoning:v1"
"""The member of `metadata` with our own parameters, and with what A2A has no place for."""
_KINDS: Final = "Send text, data, text files in UTF-8, or images as raw bytes with their mediaType."
_SETTLE: Final = "Send a data part {toolResults: [{callId, result}], etag} for all calls; a text settles a single one."


class OwnParams(ReasondParams):
    """Our own parameters of a message, by the names of JSON or by ours.

    With `server_tools` a turn may call tools of the server beside `tools`, those of its client; `if_generation_match`
    is the generation that its task must have. `as_message` asks for the answer without its task.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    strategy: str = ""
    system: str = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    server_tools: bool = False
    answer_schema: dict[str, Any] | None = None
    if_generation_match: int | None = None
    as_message: bool = False


def read_own(params: Json) -> OwnParams:
    """Return our own parameters, in the metadata of a message or beside it.

    Raises:
        InvalidRequestError: they are not valid.
    """
    given = {**params.get("metadata", {}), **params.get("message", {}).get("metadata", {})}.get(EXTENSION, {})
    if not isinstance(given, dict):
        raise InvalidRequestError.at("metadata", "must have an object for our extension")
    return read_params(OwnParams, given)


def require_generation(params: Json, generation: int) -> None:
    """Refuse a request that was made for another state of its task.

    Raises:
        EtagMismatchError: the task has gone on.
    """
    wanted = read_own(params).if_generation_match
    if wanted is not None and wanted != generation:
        text = f"The task has the generation {generation}, not {wanted}"
        raise EtagMismatchError(text, remedy="Read the task, and decide again.")


def read_task(
    params: Json, catalogue: ModelCatalogue, caller: Principal, earlier: Sequence[HistoryMessage], *, budget: Budget
) -> openai_requests.Asked:
    """Return what a message asks for that names no task; `earlier` was said before, `budget` bounds it if it does not.

    Raises:
        ReasondError: it asks for nothing that can be done here.
    """
    own, message = read_own(params), params["message"]
    builder = ConversationBuilder(earlier)
    builder.instruct(own.system)
    builder.add_user(*_read_content(message))
    dialogue = builder.build()
    offer, bounds = openai_requests.read_offer(own.tools, own.tool_choice), openai_requests.read_bounds(own)
    inputs = openai_requests.RequestInputs(
        model=f"reasond/{own.strategy}" if own.strategy else "reasond",
        system=dialogue.system,
        question=openai_requests.require_question(dialogue, "message.parts"),
        own=own,
        offer=offer,
        schema=own.answer_schema,
        budget=budget if bounds == NO_BUDGET else bounds,
        sampling={},
    )
    asked = openai_requests.plan(inputs, catalogue)
    source = replace(asked.source, echo_json=_write_echo(message, asked.warnings))
    if isinstance(source, TurnStart):
        source = replace(source, uses_server_tools=own.server_tools)
    # Clients choose ids that are unique among their own messages alone.
    name = f"{message['messageId']}\0{caller.subject}".encode("utf-8", "surrogatepass")
    return replace(asked, source=source, request_id=f"a2a-{hashlib.sha256(name).hexdigest()}")


def read_reentry(params: Json, log: ExecutionLog, handoff: HandedOff | None) -> openai_requests.Asked:
    """Return the settling of the calls of a task; `handoff` is what it waits for now.

    A text that was sent before names the hand-off that it has settled then, so that the core knows it again.

    Raises:
        ReasondError: it does not say what came of the calls, or the task does not wait.
    """
    message = params["message"]
    found = [each["data"] for each in message["parts"] if isinstance(each.get("data"), dict)]
    found = [each for each in found if each.keys() & {"toolResults", "decisions"}]
    settled = _read_settlement(found[0]) if found else _settle_by_text(message, log, handoff)
    reentry = read_params(ReenterTurnParams, {"turn_id": log.execution.execution_id, **settled}).build_reentry()
    return openai_requests.Asked(source=replace(reentry, echo_json=_write_echo(message)))


def read_receiver(config: Json, task_id: str = "task") -> TaskReceiver:
    """Return whom a client names to be told of a task."""
    headers = {"X-A2A-Notification-Token": config["token"]} if "token" in config else {}
    shown: dict[str, Any] = {"taskId": task_id, "id": config.get("id", task_id), "url": config["url"]}
    if asked := config.get("authentication"):
        headers["Authorization"] = f"{asked['scheme']} {asked.get('credentials', '')}".rstrip()
        shown["authentication"] = {"scheme": asked["scheme"]}
    return TaskReceiver(name=shown["id"], url=config["url"], headers=headers, shown=shown)


def _read_settlement(data: Json) -> Json:
    """Return what a data part says of calls, by the names of the core; `error` in place of `result` is a failure."""
    found = [data.get(name, []) for name in ("toolResults", "decisions")]
    # What has another form lacks all that must be there.
    lists = [each if isinstance(each, list) else [{}] for each in found]
    results, decisions = [[one if isinstance(one, dict) else {} for one in each] for each in lists]
    told = [to_json(one.get("error", one.get("result"))).decode() for one in results]
    return {
        "etag": data.get("etag"),
        "results": [
            {"call_id": one.get("callId"), "result_json": text, "is_error": "error" in one}
            for one, text in zip(results, told, strict=True)
        ],
        "decisions": [
            {"call_id": one.get("callId"), "is_approved": one.get("approved"), "reason": one.get("reason", "")}
            for one in decisions
        ],
    }


def _settle_by_text(message: Json, log: ExecutionLog, handoff: HandedOff | None) -> Json:
    """Return the settling of the one call that waits by what a message says."""
    settled = [logged.event for logged in log.events if isinstance(logged.event, Reentered)]
    same = [each for each in settled if read_echo(each.echo_json).get("messageId") == message["messageId"]]
    names: list[str] = []
    etag = ""
    if same:
        etag, names = same[0].etag, [*same[0].call_ids]
    elif handoff is None:
        remedy = "Read it, or send a message without a taskId."
        raise TurnNotAwaitingError("The task does not wait for input", remedy=remedy)
    elif all(one.kind is CallKind.EXECUTE for one in handoff.calls):
        etag, names = handoff.etag, [one.call.call_id for one in handoff.calls]
    if len(names) != 1 or not etag:
        raise InvalidRequestError("Request validation failed: message.parts must settle all calls", remedy=_SETTLE)
    result = {"callId": names[0], "result": _read_content(message)[0]}
    return _read_settlement({"etag": etag, "toolResults": [result]})


def read_echo(echo_json: str) -> dict[str, Any]:
    """Return what a log keeps of a message: the message itself, with `warnings` beside it; empty if it keeps none."""
    found = from_json(echo_json) if echo_json else {}
    return found if isinstance(found, dict) and "messageId" in found else {}


def _write_echo(message: Json, warnings: Sequence[str] = ()) -> str:
    return to_json({**message, **({"warnings": [*warnings]} if warnings else {})}).decode()


def _read_content(message: Json) -> tuple[str, Sequence[Image]]:
    """Return the text and the images of a message.

    Raises:
        InvalidRequestError: it is not the user's.
        A2aError: a part is of a kind that is not taken.
    """
    if message["role"] != "ROLE_USER":
        raise InvalidRequestError.at("message.role", f"must be 'ROLE_USER', got {show(message['role'])}")
    content = read_content("message.parts", [_convert_part(part) for part in message["parts"]])
    for problem in content.problems:
        text = f"{problem.field} {problem.description}"
        raise A2aError(A2aReason.CONTENT_TYPE_NOT_SUPPORTED, text, remedy=_KINDS)
    return content.text, content.images


def _convert_part(part: Json) -> Json:
    """Return a part as clients of OpenAI write it; one that is not read here has its media type or URL as its type."""
    kind = part.get("mediaType", "").partition(";")[0].strip().lower()
    if "raw" in part and kind.startswith("image/"):
        return {"type": "input_image", "image_url": f"data:{kind};base64,{part['raw']}"}
    if "url" in part or (kind and not kind.startswith(("text", "application/json"))):
        return {"type": part.get("url") or kind}
    if "raw" in part:
        return {"type": "input_file", "file_data": part["raw"], "filename": part.get("filename", "file")}
    if "text" in part or "data" in part:
        return {"type": "text", "text": part["text"] if "text" in part else to_json(part["data"]).decode()}
    return {}
