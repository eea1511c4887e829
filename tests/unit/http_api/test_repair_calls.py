"""The methods of RepairService over a real HTTP listener, above a scripted service."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import ModelTimeoutError
from reasond_server.types import Cursor
from reasond_server.types.repairs import RepairGoal, RepairTask, SourceFile
from tests.unit.grpc_api.test_repair_servicer import PLAN, TASK
from tests.unit.http_api.test_turn_calls import events_of
from tests.unit.repair.scripted import ENTRY, REPAIR, STAMP, ScriptedRepairs

if TYPE_CHECKING:
    from tests.unit.http_api.parts import ServeSite

PARAMS: dict[str, Any] = {
    "goal": "fix",
    "description": "It fails.",
    "files": [{"path": "a.py", "content_base64": "/w==", "is_executable": True}],
    "environment": "python",
    "checks": [
        {"name": "tests", "role": "held_out", "argv": ["pytest", "-q"], "format": "junit", "timeout_ms": 2500},
        {"name": "all", "command": "make"},
    ],
    "report": {
        "issues": [
            {"rule_id": "F821", "severity": "high", "path": "a.py", "line": 3, "message": "no name"},
            {"rule_id": "W1"},
        ],
        "test_outcomes": [{"suite_name": "unit", "is_passed": True, "coverage": 81.5}],
    },
    "editable": ["tests/*"],
    "config": {"search": "best_of_n", "temperature": 0.0, "enable_early_terminate": False, "seed": 7},
    "budget": {"max_model_calls": 3},
}
PLANNING = {"goal": "plan", "description": "Design it.", "snapshot_id": "s1"}


async def test_execute_asks_the_core_for_what_the_params_say(serve_site: ServeSite) -> None:
    repairs = ScriptedRepairs()
    site = await serve_site(repairs=repairs)
    done = (await site.call("repair.execute", {**PARAMS, "request_id": "mine"}))["result"]
    await site.call("repair.execute", PLANNING)
    assert [(call["task"], call["request_id"]) for call in repairs.calls] == [(TASK, "mine"), (PLAN, "")]
    assert (done["repair"]["patch"], done["repair"]["verification"]) == (REPAIR.patch, "held_out")
    assert (done["repair"]["check_cpu_ms"], done["repair"]["usage"]["source"]) == (9500, "partial")


async def test_a_file_is_text_or_base64(serve_site: ServeSite) -> None:
    repairs = ScriptedRepairs()
    site = await serve_site(repairs=repairs)
    files = [{"path": "a", "content": "ä"}, {"path": "b", "content_base64": "AAH/"}, {"path": "c"}]
    await site.call("repair.execute", {"goal": "fix", "files": files})
    contents = ("ä".encode(), b"\0\1\xff", b"")
    sent = tuple(SourceFile(path=path, content=content) for path, content in zip("abc", contents, strict=True))
    assert repairs.calls[0]["task"] == RepairTask(goal=RepairGoal.FIX, files=sent)


async def test_execute_streams_events_and_resumes_after_the_last_event_id(serve_site: ServeSite) -> None:
    repairs = ScriptedRepairs()
    site = await serve_site(repairs=repairs)
    asked = {**PARAMS, "include_deltas": True, "keep_running": True}
    events = await events_of(site, "repair.execute", asked)
    assert [event["event"] for event in events] == [
        *("started", "heartbeat", "delta", "baseline", "candidate", "critique", "reflection", "vote"),
        *("validation", "completed"),
    ]
    assert [event["id"] for event in events if "id" in event] == [f"repair-1:{number}" for number in range(1, 9)]
    first = json.loads(events[0]["data"])
    assert (first["execution_id"], first["create_time"]) == ("repair-1", STAMP)
    assert first["started"]["config"] == {"beam_width": 2, "search": "lats"}
    for params in (asked, {}):
        rest = await events_of(site, "repair.execute", params, last_event_id="repair-1:6")
        assert [event["id"] for event in rest] == ["repair-1:7", "repair-1:8"]
    begun, *resumed = repairs.calls
    assert (begun["source"], begun["include_deltas"], begun["keep_running"]) == (TASK, True, True)
    cursor = Cursor(execution_id="repair-1", after_sequence=6)
    assert [(call["source"], call["keep_running"]) for call in resumed] == [(cursor, True), (cursor, False)]


async def test_the_other_methods_ask_the_core_and_answer(serve_site: ServeSite) -> None:
    repairs = ScriptedRepairs()
    site = await serve_site(repairs=repairs)
    got = (await site.call("repair.get", {"execution_id": "repair-1"}))["result"]
    assert (got["execution"]["strategy"], got["repair"]["execution_id"]) == ("repair", "repair-1")
    entry = {"path": ENTRY.path, "digest": ENTRY.digest, "size_bytes": 12, "is_executable": True}
    made = (await site.call("repair.create_snapshot", {"manifest": [entry]}))["result"]
    assert made == {
        "snapshot": {
            "snapshot_id": "s1",
            "file_count": 2,
            "total_bytes": 42,
            "expire_time": STAMP.replace("23T", "24T"),
        },
        "missing": ["cd" * 32],
    }
    contents = [base64.b64encode(content).decode() for content in (b"one", b"")]
    assert (await site.call("repair.upload_blobs", {"contents": contents}))["result"] == {"digests": ["ab" * 32] * 2}
    assert (await site.call("repair.list_environments"))["result"] == {
        "environments": [{"name": "python", "format": "junit", "description": "Python 3.13"}],
        "level": "bwrap",
        "commands": ["tests"],
    }
    assert (repairs.calls[1]["entries"], repairs.calls[2]["contents"]) == ((ENTRY,), [b"one", b""])


@pytest.mark.parametrize(
    ("method", "params", "field", "says"),
    [
        ("repair.execute", {"description": "x"}, "goal", "is required"),
        ("repair.execute", {"goal": "mend"}, "goal", "must be one of 'fix' or 'plan'"),
        ("repair.execute", {**PLANNING, "keep_running": True}, "keep_running", "needs a stream; ask for one with"),
        (
            "repair.execute",
            {"goal": "fix", "descripton": ""},
            "descripton",
            "is not known; did you mean 'description'?",
        ),
        (
            "repair.execute",
            {"goal": "fix", "files": [{"pth": "a"}]},
            "files.0.pth",
            "is not known; did you mean 'path'?",
        ),
        (
            "repair.execute",
            {"goal": "fix", "files": [{"path": "a", "content": "x", "content_base64": "eA=="}]},
            "files.0.content_base64",
            "cannot be combined with content; leave one out",
        ),
        (
            "repair.execute",
            {"goal": "fix", "files": [{}, {"content_base64": "*"}]},
            "files.1.content_base64",
            "must be base64 (RFC 4648, section 4)",
        ),
        ("repair.execute", {"goal": "fix", "checks": [{"role": "x"}]}, "checks.0.role", "must be one of 'reproduce', "),
        (
            "repair.execute",
            {"goal": "fix", "checks": [{"timeout_ms": 0}]},
            "checks.0.timeout_ms",
            "must be at least 1, got 0",
        ),
        (
            "repair.execute",
            {"goal": "fix", "report": {"issues": [{"rule": "x"}]}},
            "report.issues.0.rule",
            "is not known; did you mean 'rule_id'?",
        ),
        ("repair.execute", {"goal": "fix", "config": []}, "config", "must be an object"),
        ("repair.get", {"execution_id": ""}, "execution_id", "must not be empty"),
        (
            "repair.create_snapshot",
            {"manifest": [{"size_bytes": 0.5}]},
            "manifest.0.size_bytes",
            "must be a whole number",
        ),
        ("repair.upload_blobs", {"contents": [7]}, "contents.0", "must be base64"),
        ("repair.list_environments", {"page_size": 1}, "page_size", "is not known"),
    ],
)
async def test_malformed_params_are_refused_before_the_core(
    serve_site: ServeSite, method: str, params: dict[str, Any], field: str, says: str
) -> None:
    repairs = ScriptedRepairs()
    site = await serve_site(repairs=repairs)
    error = (await site.call(method, params))["error"]
    assert (error["code"], error["data"]["reason"]) == (-32602, "INVALID_REQUEST")
    (violation,) = error["data"]["violations"]
    assert violation["field"] == field
    assert violation["description"].startswith(says)
    assert not repairs.calls


async def test_the_error_of_a_failed_repair_shows_the_repair(serve_site: ServeSite) -> None:
    failure = ModelTimeoutError("The model did not answer")
    failure.execution_id = "repair-1"
    site = await serve_site(repairs=ScriptedRepairs(failure=failure))
    error = (await site.call("repair.execute", PARAMS))["error"]
    assert error["data"]["reason"] == "MODEL_TIMEOUT"
    assert error["data"]["partial"]["repair"]["patch"] == REPAIR.patch


@pytest.mark.parametrize(
    ("method", "permission"),
    [
        ("repair.execute", "repair:execute"),
        ("repair.get", "executions:read"),
        ("repair.create_snapshot", "repair:execute"),
        ("repair.upload_blobs", "repair:execute"),
        ("repair.list_environments", "repair:execute"),
    ],
)
async def test_each_method_needs_its_permission(serve_site: ServeSite, method: str, permission: str) -> None:
    site = await serve_site(repairs=ScriptedRepairs())
    token = site.token("reasoning:execute", "turns:execute", "turns:read", "repair:commands")
    error = (await site.call(method, {"auth_token": token}))["error"]
    assert f"'{permission}'" in error["message"]
