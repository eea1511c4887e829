"""Trials of what models and gateways stream, and of what clients of /v1 send."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from reasond import ReasondError
from reasond.v1.execution_pb2 import FinishReason, UsageSource
from tests.reports.model_server import MARK, Said, say_events, say_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.reports.rows import Row
    from tests.reports.site import Site

LATER: Final = "The tool has told it.\n<answer>seventeen</answer>"
"""What the model says once it has been answered."""
FIGURES: Final = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens", "source")
"""The members of a right value that are members of the usage."""
_CALLS_FOR_A_FAILED_ONE: Final = 4
_ANSWERED: Final = ("answered", "answered_untagged")


@dataclass(kw_only=True)
class Found:
    """What a client of the server saw."""

    answer: str = ""
    answer_json: str = ""
    finish: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reasoning: str = ""
    calls: list[list[Any]] = field(default_factory=list)
    error: str = ""


def say_row(row: Row) -> Said:
    """Return the first response of a row's model: its events, or its raw `body`."""
    told = row.input
    more = {"content_type": told["content_type"]} if "content_type" in told else {}
    if "body" in told:
        return Said(body=told["body"], status=told.get("status", 200), **more)
    return say_events(told["events"], end=told.get("end", "done"), status=told.get("status", 200), **more)


async def try_chat(site: Site, row: Row) -> list[str]:
    """Feed one reply to a strategy over gRPC, and to the stream of /v1; return what is wrong, empty for nothing."""
    said = say_row(row)
    is_react = row.input.get("strategy") == "react"
    talk = site.models.begin(row.id, [said, say_text(LATER)] if is_react else [said])
    found = await _ask(site, row)
    if found.finish == "error":
        await _reassure(site)
    faults = compare(row.right, found)
    wanted = row.right.get("requests")
    if wanted is not None and len(talk.asked) != wanted:
        faults.append(f"{len(talk.asked)} calls of the model, and {wanted} were enough")
    if "hidden" in row.right:
        site.models.begin(row.id, [said, say_text(LATER)] if is_react else [said])
        shown = await _stream_content(site, row)
        faults += [f"a client of /v1 is shown {word!r}" for word in row.right["hidden"] if word in shown]
    return faults


def _write_query(row: Row) -> str:
    return f"{MARK.format(row=row.id)} {row.input.get('query', 'What does the model say?')}"


async def _ask(site: Site, row: Row) -> Found:
    strategy = row.input.get("strategy", "chain_of_thought")
    config: dict[str, Any] = {"allow_tool_use": True} if strategy == "react" else {}
    found = Found()
    try:
        view = site.client.reason_iterations(
            _write_query(row),
            strategy=strategy,
            config=config | row.input.get("config", {}),
            answer_schema=row.input.get("schema"),
        )
        thoughts: list[str] = []
        async for event in view:
            if event.HasField("iteration"):
                step = event.iteration
                thoughts.append(str(getattr(step, str(step.WhichOneof("detail")))))
                found.calls += [[call.tool, _read_json(call.arguments_json)] for call in step.react.actions]
            if event.HasField("completed"):
                done = event.completed
                found.answer, found.answer_json = done.answer, done.answer_json
                found.finish = FinishReason.Name(done.finish_reason).removeprefix("FINISH_REASON_").lower()
                usage = done.metrics.usage
                found.figures = {
                    "input_tokens": usage.input_tokens,
                    "output_tokens": usage.output_tokens,
                    "reasoning_tokens": usage.reasoning_tokens,
                    "cached_input_tokens": usage.cached_input_tokens,
                    "source": UsageSource.Name(usage.source).removeprefix("USAGE_SOURCE_").lower(),
                }
                found.warnings = list(done.warnings)
        found.reasoning = "\n".join(thoughts)
    except ReasondError as error:
        found.finish, found.error = "error", str(error)
    return found


async def _reassure(site: Site) -> None:
    """Make calls that end well: a backend of whose last calls half failed is left alone for a while."""
    site.models.begin("well", [say_text(LATER)])
    for _ in range(_CALLS_FOR_A_FAILED_ONE):
        await site.client.reason(f"{MARK.format(row='well')} Is all well?", strategy="chain_of_thought")


async def _stream_content(site: Site, row: Row) -> str:
    """Return the content that a client of /v1 is streamed."""
    model = f"reasond/{row.input.get('strategy', 'chain_of_thought')}"
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": _write_query(row)}],
    }
    response = await site.http.post("/v1/chat/completions", json=body)
    return read_stream(response.text)


def read_stream(text: str) -> str:
    """Return the content of a stream of /v1."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", []))


def compare(right: Mapping[str, Any], found: Found) -> list[str]:
    """Return what differs from the right value."""
    faults = _compare_finish(right, found)
    if "answer" in right and found.answer != right["answer"]:
        faults.append(f"the answer is {found.answer!r}")
    if "answer_json" in right and _read_json(found.answer_json) != right["answer_json"]:
        faults.append(f"answer_json is {found.answer_json!r}")
    if "calls" in right and found.calls != right["calls"]:
        faults.append(f"the calls are {found.calls}, the answer {found.answer!r}")
    if right.get("reasoning", "") not in found.reasoning:
        faults.append("the reasoning is in no step")
    figures = {name: found.figures.get(name) for name in FIGURES if name in right}
    faults += [f"{name} is {value}" for name, value in figures.items() if value != right[name]]
    faults += [f"{word!r} is in the answer" for word in right.get("hidden", ()) if word in found.answer]
    return faults + _compare_warnings(right, found)


def _compare_finish(right: Mapping[str, Any], found: Found) -> list[str]:
    wanted = right.get("finish", "answered" if "answer" in right else "")
    if wanted == "not answered":
        return [f"{found.finish} {found.answer!r}"] if found.finish in _ANSWERED else []
    choices = {"answered": _ANSWERED, "": (found.finish,)}.get(wanted, (wanted,))
    return [] if found.finish in choices else [f"it ended {found.finish} {found.error}, not {wanted}"]


def _compare_warnings(right: Mapping[str, Any], found: Found) -> list[str]:
    told = [*found.warnings, found.error]
    faults = [f"it warns: {found.warnings}"] if right.get("no_warning") and found.warnings else []
    missing = [word for word in right.get("warnings", ()) if not any(word in each for each in told)]
    return faults + [f"no warning names {word!r}: {found.warnings}" for word in missing]


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def try_signature(site: Site, row: Row) -> list[str]:
    """Feed a call with members of its own to react; the next request must hold them verbatim."""
    talk = site.models.begin(row.id, [say_row(row), say_text(LATER)])
    found = await _ask(site, row)
    if len(talk.asked) < 2:
        return [f"{len(talk.asked)} calls of the model, {found.finish}, {found.error}"]
    messages = json.loads(talk.asked[1])["messages"]
    held = json.dumps(messages, sort_keys=True)
    faults = compare(row.right, found)
    for wanted in row.right["holds"]:
        text = json.dumps(wanted, sort_keys=True)
        if text not in held:
            faults.append(f"the second request does not hold {text}")
    return faults


async def try_v1(site: Site, row: Row) -> list[str]:
    """Send a body to chat completions; "$ROW" in it is what the model server knows the row by."""
    says = [say_events(each) for each in row.input.get("says", [])] or [say_text("It is seventeen.")]
    talk = site.models.begin(row.id, says)
    body = json.loads(json.dumps(row.input["body"]).replace("$ROW", MARK.format(row=row.id)))
    response = await site.http.post("/v1/chat/completions", json=body)
    told = response.text
    faults = []
    if response.status_code != row.right.get("status", 200):
        faults.append(f"status {response.status_code}: {told[:300]}")
    faults += [
        f"the response does not hold {text!r}: {told[:600]}" for text in row.right.get("holds", ()) if text not in told
    ]
    faults += [f"the response holds {text!r}: {told[:600]}" for text in row.right.get("lacks", ()) if text in told]
    sent = "".join(talk.asked)
    faults += [f"the model is not sent {text!r}" for text in row.right.get("sends", ()) if text not in sent]
    if row.right.get("is_told"):
        faults += _find_silence(json.loads(told), asked=len(talk.asked), least=len(says))
    return faults


def _find_silence(told: dict[str, Any], *, asked: int, least: int) -> list[str]:
    """Return a fault if a reply that is no answer was handed on as one: no second call, error or warning."""
    if asked > least or "error" in told or told["reasond"]["warnings"]:
        return []
    finish = told["choices"][0]["finish_reason"]
    return [f"a silent {finish}"] if finish == "stop" else []
