"""Checks the requests of turns, once for all transports; the comments of turns.proto state the limits.

Nothing is stored before these checks. They name the fields of a request without what holds it: `message`,
`client_tools[0].name`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.requests.task_checks import (
    DEFAULT_BOUNDS,
    MAX_SYSTEM_CHARACTERS,
    HistoryBounds,
    find_in_budget,
    find_in_history,
    find_in_id,
    find_in_images,
    find_in_material,
    find_in_schema,
    find_in_stop,
    find_in_text,
    find_in_words,
)
from reasond_server.tools.json_parser import read_strict_json
from reasond_server.turns.policy import OnUnknownOutcome, TurnPolicy
from reasond_server.turns.turn_tools import read_schema
from reasond_server.types.turns import ContextScope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from reasond_server.types import ToolResult
    from reasond_server.types.turns import ClientTool, ContextBlock, Decision, ResultPart, TurnReentry, TurnStart

MAX_BLOCKS: Final = 64
MAX_BLOCK_NAME_CHARACTERS: Final = 64
MAX_BLOCK_CHARACTERS: Final = 100_000
MAX_TOOL_DESCRIPTION_CHARACTERS: Final = 20_000
MAX_REASON_CHARACTERS: Final = 1_000
MAX_PART_CHARACTERS: Final = 1_000
MAX_SETTLED_CALLS: Final = 1_000
MAX_TEMPERATURE: Final = 2
_NO_WAIT: Final = (
    "a turn that waits for its client could not be resumed, because this server keeps no content "
    "([store] record_content)"
)
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")


def check_start(
    start: TurnStart,
    *,
    policy: TurnPolicy,
    server_tool_names: Collection[str],
    request_id: str,
    history: HistoryBounds = DEFAULT_BOUNDS,
) -> None:
    """Refuse the start of a turn that exceeds the limits, or names what this server does not have.

    Raises:
        InvalidRequestError: with one violation for each problem.
    """
    found = [
        *find_in_words("message", start.message),
        *find_in_material(start.material),
        *_in_session(start),
        *_in_mode(start.mode, policy),
        *_in_tools(start.client_tools, policy, server_tool_names),
        *_in_blocks(start.context),
        *find_in_budget(start.budget),
        *find_in_text("system", start.system, most=MAX_SYSTEM_CHARACTERS),
        *_in_history(start, history),
        *_in_options(start, server_tool_names),
        *find_in_id("request_id", request_id),
    ]
    if found:
        raise InvalidRequestError.of(*found)


def check_no_wait(start: TurnStart, *, policy: TurnPolicy, server_tool_names: Collection[str]) -> None:
    """Refuse a turn that could wait for its client on a server that keeps no content, since nobody could resume it.

    `server_tool_names` are the tools of the server that the turn may use.

    Raises:
        InvalidRequestError: the client offers tools, a tool needs approval, or clients are asked for unknown outcomes.
    """
    if start.client_tools:
        raise InvalidRequestError.at("client_tools", f"must be empty: {_NO_WAIT}")
    modes = [policy.mode_in_force(name) for name in (policy.default_mode, *policy.modes)]
    guarded = [
        name
        for name in policy.needs_approval
        if name in server_tool_names and any(mode.tools is None or name in mode.tools for mode in modes)
    ]
    if guarded:
        raise InvalidRequestError(
            f"The tool {show(guarded[0])} needs approval, but {_NO_WAIT}",
            remedy="Use a token without the permission reasoning:tools, or have the operator set record_content = true "
            "in [store], or take the tool out of the modes.",
        )
    if server_tool_names and policy.on_unknown_outcome is OnUnknownOutcome.ASK:
        raise InvalidRequestError(
            f'on_unknown_outcome is "ask", but {_NO_WAIT}',
            remedy="Use a token without the permission reasoning:tools, or have the operator set record_content = true "
            'in [store], or on_unknown_outcome = "fail" in [turns].',
        )


def check_session_blocks(new: Sequence[ContextBlock], kept: Mapping[str, str]) -> None:
    """Refuse blocks of the scope SESSION that give the session, which has `kept`, more blocks than it may have.

    Raises:
        InvalidRequestError: there would be too many.
    """
    texts = {**kept, **{one.name: one.text for one in new if one.scope is ContextScope.SESSION}}
    count = sum(bool(text) for text in texts.values())
    if count > MAX_BLOCKS:
        text = f"gives the session {count} blocks, and it may have {MAX_BLOCKS}; send some with an empty text"
        raise InvalidRequestError.at("context", text)


def check_reentry_shape(reentry: TurnReentry) -> None:
    """Refuse a re-entry that could not fit any hand-off: without ids, or too large. The turn checks the rest.

    Raises:
        InvalidRequestError: with one violation for each problem.
    """
    found = [*_in_required_id("turn_id", reentry.turn_id), *_in_required_id("etag", reentry.etag)]
    parts: Mapping[str, Sequence[ToolResult | Decision]]
    parts = {"results": reentry.results, "decisions": reentry.decisions}
    for field, settled in parts.items():
        if len(settled) > MAX_SETTLED_CALLS:
            text = f"must have at most {MAX_SETTLED_CALLS} entries, got {len(settled)}; send one for each pending call"
            found.append(Violation(field=field, description=text))
            continue
        for index, each in enumerate(settled):
            found += _in_required_id(f"{field}[{index}].call_id", each.call_id)
    for index, decision in enumerate(reentry.decisions[:MAX_SETTLED_CALLS]):
        found += find_in_text(f"decisions[{index}].reason", decision.reason, most=MAX_REASON_CHARACTERS)
    if found:
        raise InvalidRequestError.of(*found)


def check_part(part: ResultPart, *, max_bytes: int) -> None:
    """Refuse a part of a tool result that cannot exist.

    Raises:
        InvalidRequestError: with one violation for each problem.
    """
    counts = (("offset", part.offset), ("limit", part.limit), ("max_bytes", max_bytes))
    found = [Violation(field=name, description=f"must be at least 0, got {n}") for name, n in counts if n < 0]
    if part.json_pointer is not None:
        found += find_in_text("json_pointer", part.json_pointer, most=MAX_PART_CHARACTERS)
        if part.json_pointer and not part.json_pointer.startswith("/"):
            text = f"must be empty or begin with / (RFC 6901), got {show(part.json_pointer)}"
            found.append(Violation(field="json_pointer", description=text))
    if part.contains is not None:
        found += find_in_text("contains", part.contains, least=1, most=MAX_PART_CHARACTERS)
    if found:
        raise InvalidRequestError.of(*found)


def _in_session(start: TurnStart) -> Iterator[Violation]:
    yield from find_in_id("session_id", start.session_id)
    if start.if_revision is None:
        return
    if start.if_revision < 0:
        yield Violation(field="if_revision", description=f"must be at least 0, got {start.if_revision}")
    elif not start.session_id:
        yield Violation(field="if_revision", description="needs a session_id, whose revision it is")


def _in_history(start: TurnStart, bounds: HistoryBounds) -> Iterator[Violation]:
    if start.history and start.session_id:
        text = f"must be empty with the session_id {show(start.session_id)}: the session keeps what was said before"
        yield Violation(field="history", description=text)
    else:
        yield from find_in_history(start.history, bounds)


def _in_options(start: TurnStart, server_names: Collection[str]) -> Iterator[Violation]:
    """Yield what is wrong with how the turn is to be answered."""
    names = {tool.name for tool in start.client_tools}
    choice = start.tool_choice
    if choice in {"required", *names} and not names and not server_names:
        yield Violation(field="tool_choice", description="is 'required', and no tools are offered; offer some")
    elif choice not in {"", "auto", "none", "required", *names}:
        hint = suggest_nearest(choice, names)
        text = f"must be 'auto', 'none', 'required' or the name of a client tool, got {show(choice)}{hint}"
        yield Violation(field="tool_choice", description=text)
    if start.answer_schema_json:
        yield from _in_schema(start.answer_schema_json)
    yield from find_in_stop(start.stop)
    yield from find_in_images(start.images)
    if start.temperature is not None and not 0 <= start.temperature <= MAX_TEMPERATURE:
        text = f"must be between 0 and {MAX_TEMPERATURE}, got {start.temperature}"
        yield Violation(field="temperature", description=text)


def _in_schema(text: str) -> Iterator[Violation]:
    try:
        schema = read_strict_json(text)
    except ValueError:
        schema = None
    if isinstance(schema, dict):
        for each in find_in_schema(schema):
            yield Violation(field="answer_schema_json", description=each.description)
    else:
        yield Violation(field="answer_schema_json", description=f"must be a JSON object, got {show(text)}")


def _in_mode(mode: str | None, policy: TurnPolicy) -> Iterator[Violation]:
    if mode is not None and policy.find_mode(mode) is None:
        hint = suggest_nearest(mode, {*policy.modes, policy.default_mode})
        yield Violation(field="mode", description=f"is no mode of this server, got {show(mode)}{hint}")


def _in_tools(tools: Sequence[ClientTool], policy: TurnPolicy, server_names: Collection[str]) -> Iterator[Violation]:
    if len(tools) > policy.max_client_tools:
        text = (
            f"must have at most {policy.max_client_tools} entries, got {len(tools)}; offer only those that are needed"
        )
        yield Violation(field="client_tools", description=text)
        return
    counts = Counter(tool.name for tool in tools)
    for index, tool in enumerate(tools):
        field = f"client_tools[{index}]"
        yield from _in_tool_name(f"{field}.name", tool.name, counts[tool.name], server_names)
        yield from find_in_text(f"{field}.description", tool.description, most=MAX_TOOL_DESCRIPTION_CHARACTERS)
        try:
            read_schema(tool.parameters_json)
        except ValueError as error:
            yield Violation(field=f"{field}.parameters_json", description=str(error))


def _in_tool_name(field: str, name: str, count: int, server_names: Collection[str]) -> Iterator[Violation]:
    if not _TOOL_NAME.match(name):
        yield Violation(field=field, description=f"must have 1-128 of a-z, A-Z, 0-9, _ and -, got {show(name)}")
    elif name in server_names:
        yield Violation(field=field, description=f"{show(name)} is a tool of this server; rename yours")
    elif count > 1:
        yield Violation(
            field=field, description=f"{show(name)} is the name of {count} client tools; rename all but one"
        )


def _in_blocks(blocks: Sequence[ContextBlock]) -> Iterator[Violation]:
    if len(blocks) > MAX_BLOCKS:
        text = f"must have at most {MAX_BLOCKS} entries, got {len(blocks)}; join some of them"
        yield Violation(field="context", description=text)
        return
    counts = Counter(block.name for block in blocks)
    for index, block in enumerate(blocks):
        field = f"context[{index}]"
        yield from find_in_text(f"{field}.name", block.name, least=1, most=MAX_BLOCK_NAME_CHARACTERS)
        if counts[block.name] > 1:
            text = f"{show(block.name)} is the name of {counts[block.name]} blocks; rename all but one"
            yield Violation(field=f"{field}.name", description=text)
        least = 1 if block.scope is ContextScope.TURN else 0
        yield from find_in_text(f"{field}.text", block.text, least=least, most=MAX_BLOCK_CHARACTERS)


def _in_required_id(field: str, text: str) -> Iterator[Violation]:
    if not text:
        yield Violation(field=field, description="is required")
    else:
        yield from find_in_id(field, text)
