"""Repairs over gRPC and JSON-RPC against a real server with a real sandbox: the same cases with the same results."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

import reasond
from reasond_server.errors.model import ModelFailedError
from reasond_server.repair.edits import patches
from reasond_server.testing import Reply, ScriptedModel
from tests.contract.repair_calls import CALC, CHECK, EDIT, TASK, TEST, WIRES, call, mint, repairing_server, stream
from tests.repairing import install_slow_git

pytestmark = pytest.mark.slow


async def test_a_repair_is_accepted_kept_and_found_again_under_its_request_id() -> None:
    with ScriptedModel([EDIT, EDIT]) as model:
        async with repairing_server(model) as server:
            for wire in WIRES:
                done = (await call(server, wire, "repair.execute", {**TASK, "request_id": wire})).body["repair"]
                again = (await call(server, wire, "repair.execute", {**TASK, "request_id": wire})).body["repair"]
                got = (await call(server, wire, "repair.get", {"execution_id": done["execution_id"]})).body
                assert (done["is_accepted"], done["verification"], done["finish_reason"]) == (
                    True,
                    "visible_only",
                    "answered",
                )
                assert "-    return a - b\n+    return a + b" in done["patch"]
                assert done["ranking"][0]["patch"] == done["patch"]
                assert done["level"] in {"bwrap", "landlock"}
                assert again == got["repair"] == done
                assert (got["execution"]["state"], got["execution"]["request_id"]) == ("succeeded", wire)
    assert len(model.requests) == 2, "a request that is sent again asks the model nothing"


async def test_what_was_asked_for_is_told_and_can_be_asked_for_again_as_it_is() -> None:
    asked = {
        **TASK,
        "checks": [
            {**CHECK, "timeout_ms": 45_000},
            {"name": "named", "role": "held_out", "command": "script", "format": "exit_code"},
        ],
        "report": {"issues": [{"rule_id": "E1", "severity": "high", "path": "calc.py", "line": 2, "message": "odd"}]},
        "editable": ["test_*.py"],
        "config": {"search": "best_of_n", "num_candidates": 1, "seed": 7},
        "budget": {"max_total_tokens": 90_000, "max_elapsed_ms": 200_000},
    }
    with ScriptedModel([EDIT] * 3) as model:
        async with (
            repairing_server(model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            done = (await call(server, "jsonrpc", "repair.execute", asked)).body["repair"]
            told = (await call(server, "jsonrpc", "repair.get", {"execution_id": done["execution_id"]})).body["task"]
            again = (await call(server, "jsonrpc", "repair.execute", told)).body["repair"]
            retold = (await call(server, "jsonrpc", "repair.get", {"execution_id": again["execution_id"]})).body["task"]
            message = (await client.get_repair(done["execution_id"])).task
            result = await client.repair(message, timeout_s=200)
            same = (await client.get_repair(result.execution_id)).task
            whole = await call(server, "jsonrpc", "executions.list", {"strategy": "repair"})
    assert done["is_accepted"]
    assert again["is_accepted"]
    assert result.is_accepted
    assert retold == told
    assert same == message
    assert len(whole.body["executions"]) == 3
    assert (told["description"], told["environment"], told["editable"]) == (
        TASK["description"],
        "python",
        ["test_*.py"],
    )
    assert [(each["role"], each["timeout_ms"]) for each in told["checks"]] == [
        ("reproduce", 45_000),
        ("held_out", None),
    ]
    assert told["checks"][1]["command"] == "script"
    assert (told["config"]["search"], told["config"]["seed"]) == ("best_of_n", 7)
    assert (told["budget"]["max_total_tokens"], told["budget"]["max_elapsed_ms"]) == (90_000, 200_000)
    assert message.report.issues[0].message == told["report"]["issues"][0]["message"] == "odd"
    assert message.config.seed == 7
    assert [each.HasField("timeout") for each in message.checks] == [True, False]


async def test_a_server_that_keeps_no_content_does_not_tell_what_was_asked_for() -> None:
    with ScriptedModel([EDIT]) as model:
        async with repairing_server(model, REASOND__STORE__RECORD_CONTENT="false") as server:
            done = (await call(server, "jsonrpc", "repair.execute", TASK)).body["repair"]
            for wire in WIRES:
                got = (await call(server, wire, "repair.get", {"execution_id": done["execution_id"]})).body
                assert got.get("task") is None


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_is_resumed_after_any_event_over_the_other_wire(wire: str) -> None:
    other = next(each for each in WIRES if each != wire)
    with ScriptedModel([EDIT]) as model:
        async with repairing_server(model) as server:
            events = await stream(server, wire, TASK)
            names = [name for _, _, name in events]
            assert [sequence for _, sequence, _ in events] == list(range(1, len(events) + 1))
            assert names[:4] == ["started", "baseline", "candidate", "critique"]
            assert names[-1] == "completed"
            execution_id = events[0][0]
            for place in (0, 3, len(events) - 1):
                rest = await stream(server, other, TASK, after=(execution_id, place))
                assert rest == events[place:]


MISTAKES = {
    **TASK,
    "files": [],
    "environment": "pyton",
    "checks": [
        {**CHECK, "name": "Bad name"},
        {"name": "twice", "argv": ["true"], "command": "script"},
        {"name": "twice", "command": "scrpt"},
        {"name": "none"},
    ],
    "report": {"issues": [{"rule_id": "F1", "line": -1}], "test_outcomes": [{"is_passed": True, "coverage": 101.0}]},
    "editable": [""],
    "budget": {"max_model_calls": 0},
    "request_id": "a\tb",
}


async def test_every_mistake_is_named_once_and_in_the_same_words() -> None:
    async with repairing_server(ScriptedModel([])) as server:
        over_grpc, over_json = [await call(server, wire, "repair.execute", MISTAKES) for wire in WIRES]
    assert over_grpc == over_json
    assert over_json.reason == "INVALID_REQUEST"
    assert [name for name, _ in over_json.violations] == [
        *("files", "environment", "checks[0].name", "checks[1].name", "checks[1].command", "checks[2].name"),
        *("checks[2].command", "checks[3].argv", "report.issues[0].line", "report.test_outcomes[0].coverage"),
        *("editable[0]", "budget.max_model_calls", "request_id"),
    ]
    said = dict(over_json.violations)
    assert "did you mean 'python'?" in said["environment"]
    assert "did you mean 'script'?" in said["checks[2].command"]


async def test_wrong_paths_are_named_together_with_all_other_mistakes() -> None:
    wrong = {**TASK, "files": [*TASK["files"], {"path": "../a", "content": ""}], "environment": "pyton"}
    async with repairing_server(ScriptedModel([])) as server:
        answers = [await call(server, wire, "repair.execute", wrong) for wire in WIRES]
    assert answers[0] == answers[1]
    assert [name for name, _ in answers[0].violations] == ["files[2].path", "environment"]


async def test_wrong_parameters_are_named_in_the_same_words_and_a_similarity_is_refused_with_the_reason() -> None:
    config = {"deduplication_similarity": 0.95, "max_candidates": 1001, "temperature": 3.0, "num_candidates": 6}
    async with repairing_server(ScriptedModel([]), REASOND__REPAIR__MAX_ALLOWED_NUM_CANDIDATES="5") as server:
        answers = [await call(server, wire, "repair.execute", {**TASK, "config": config}) for wire in WIRES]
        unknown = await call(
            server, "jsonrpc", "repair.execute", {**TASK, "config": {"max_candidate": 3, "search": "x"}}
        )
    over_grpc, over_json = (sorted(answer.violations) for answer in answers)
    assert {answer.reason for answer in answers} == {"INVALID_CONFIG"}
    assert over_grpc == over_json
    assert [name for name, _ in over_json] == [f"config.{name}" for name in sorted(config)]
    assert "syntax tree" in dict(over_json)["config.deduplication_similarity"]
    assert "did you mean 'max_candidates'?" in dict(unknown.violations)["config.max_candidate"]


@pytest.mark.parametrize("wire", WIRES)
async def test_commands_of_the_callers_own_need_a_permission_and_those_of_the_server_none(wire: str) -> None:
    poor, reader = mint("repair:execute"), mint("executions:read")
    named = {**TASK, "checks": [{"name": "script", "command": "script", "format": "exit_code"}]}
    with ScriptedModel([EDIT]) as model:
        async with repairing_server(model) as server:
            refused = await call(server, wire, "repair.execute", TASK, poor)
            done = await call(server, wire, "repair.execute", named, poor)
            wanted = {"execution_id": done.body["repair"]["execution_id"]}
            unread = await call(server, wire, "repair.get", wanted, poor)
            got = await call(server, wire, "repair.get", wanted, reader)
            unused = await call(server, wire, "repair.execute", named, reader)
            foreign = await call(server, wire, "repair.get", wanted, mint("admin", tenant="globex"))
            listed = await call(server, wire, "repair.list_environments", {}, poor)
    ((field, text),) = refused.violations
    assert (refused.reason, field) == ("INVALID_REQUEST", "checks[0].argv")
    assert "repair:commands" in text
    assert "script" in text
    assert done.body["repair"]["is_accepted"] is True
    assert (unread.reason, unused.reason) == ("PERMISSION_MISSING", "PERMISSION_MISSING")
    assert got.body["repair"]["patch"] == done.body["repair"]["patch"]
    assert foreign.reason == "EXECUTION_NOT_FOUND"
    assert (listed.body["environments"][0]["name"], listed.body["commands"]) == ("python", ["script"])


async def test_files_of_a_held_out_command_of_the_server_are_not_shown_to_the_model() -> None:
    hidden = {"path": "test_hidden.py", "content": TEST.replace("2, 3", "20, 30").replace("5", "50")}
    named = {"name": "hidden", "command": "hidden", "role": "held_out", "format": "exit_code"}
    task = {**TASK, "files": [*TASK["files"], hidden], "checks": [CHECK, named]}
    with ScriptedModel([EDIT]) as model:
        async with repairing_server(model, REASOND__REPAIR__COMMANDS__HIDDEN='["python", "test_hidden.py"]') as server:
            done = (await call(server, "jsonrpc", "repair.execute", task)).body["repair"]
    shown = "".join(message.content for message in model.requests[0].messages)
    assert done["verification"] == "held_out"
    assert "test_calc.py" in shown
    assert "hidden" not in shown
    assert "20, 30" not in shown


@pytest.mark.parametrize("wire", WIRES)
async def test_repairs_are_listed_cancelled_and_deleted_as_executions_are(wire: str) -> None:
    poor, other = mint("repair:execute"), mint("reasoning:execute", "executions:read")
    with ScriptedModel([EDIT]) as model:
        async with repairing_server(model) as server:
            done = (await call(server, wire, "repair.execute", TASK, mint())).body["repair"]
            wanted = {"execution_id": done["execution_id"]}
            listed = await call(server, wire, "executions.list", {"strategy": "repair"}, other)
            unread = await call(server, wire, "executions.get", wanted, other)
            refused = [await call(server, wire, f"executions.{name}", wanted, other) for name in ("cancel", "delete")]
            cancelled = await call(server, wire, "executions.cancel", wanted, poor)
            reasoned = await call(server, wire, "reasoning.list_strategies", {}, poor)
            deleted = await call(server, wire, "executions.delete", wanted, poor)
            gone = await call(server, wire, "repair.get", wanted, mint())
    assert [each["execution_id"] for each in listed.body["executions"]] == [done["execution_id"]]
    assert unread.reason == "EXECUTION_NOT_FOUND", "its own service reads it"
    assert [each.reason for each in refused] == ["PERMISSION_MISSING"] * 2
    assert cancelled.body["execution"]["state"] == "succeeded"
    assert (reasoned.reason, deleted.reason, gone.reason) == ("PERMISSION_MISSING", "", "EXECUTION_NOT_FOUND")


async def test_what_cannot_be_repaired_is_refused_before_a_token_is_spent() -> None:
    right = [{"path": "calc.py", "content": CALC.replace("-", "+")}, {"path": "test_calc.py", "content": TEST}]
    wanting = {
        "NOT_REPRODUCED": {**TASK, "files": right},
        "CHECK_UNUSABLE": {**TASK, "checks": [{**CHECK, "argv": ["no-such-program"]}]},
        "SNAPSHOT_NOT_FOUND": {**TASK, "files": [], "snapshot_id": "0" * 64},
    }
    async with repairing_server(model := ScriptedModel([])) as server:
        for reason, params in wanting.items():
            for wire in WIRES:
                answer = await call(server, wire, "repair.execute", params)
                assert answer.reason == reason
        assert not model.requests
    async with repairing_server(ScriptedModel([]), REASOND__REPAIR__SANDBOX__LEVEL="off") as server:
        assert {(await call(server, wire, "repair.execute", TASK)).reason for wire in WIRES} == {"SANDBOX_UNAVAILABLE"}
        assert {(await call(server, wire, "repair.list_environments", {})).body["level"] for wire in WIRES} == {"off"}


async def test_code_is_uploaded_once_and_repaired_by_the_id_of_its_snapshot() -> None:
    contents = {"calc.py": CALC.encode(), "test_calc.py": TEST.encode()}
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    manifest = [
        {"path": path, "digest": digests[path], "size_bytes": len(content)} for path, content in contents.items()
    ]
    with ScriptedModel([EDIT, EDIT]) as model:
        async with repairing_server(model) as server:
            for wire, tenant in zip(WIRES, ("acme", "globex"), strict=True):
                token = mint("repair:execute", "repair:commands", tenant=tenant)
                first = (await call(server, wire, "repair.create_snapshot", {"manifest": manifest}, token)).body
                early = {**TASK, "files": [], "snapshot_id": first["snapshot"]["snapshot_id"]}
                assert (await call(server, wire, "repair.execute", early, token)).reason == "SNAPSHOT_NOT_FOUND"
                blobs = [base64.b64encode(content).decode() for content in contents.values()]
                put = (await call(server, wire, "repair.upload_blobs", {"contents": blobs}, token)).body
                again = (await call(server, wire, "repair.create_snapshot", {"manifest": manifest}, token)).body
                done = (await call(server, wire, "repair.execute", early, token)).body["repair"]
                assert sorted(first["missing"]) == sorted(put["digests"]) == sorted(digests.values())
                assert not again.get("missing")
                assert again["snapshot"]["snapshot_id"] == first["snapshot"]["snapshot_id"]
                assert done["is_accepted"] is True


async def test_a_repair_whose_model_fails_keeps_what_it_has() -> None:
    async with repairing_server(ScriptedModel([Reply(error=ModelFailedError("gone"))] * 20)) as server:
        failed = await call(server, "jsonrpc", "repair.execute", TASK)
        kept = failed.body["repair"]
        got = (await call(server, "grpc", "repair.get", {"execution_id": kept["execution_id"]})).body
    assert failed.reason == "MODEL_FAILED"
    assert (kept["finish_reason"], kept["error"]["reason"], kept["patch"]) == ("failed", "MODEL_FAILED", "")
    assert (got["execution"]["state"], got["repair"]["finish_reason"]) == ("failed", "failed")


async def test_a_git_that_does_not_end_is_told_plainly_and_leaves_nothing_that_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patches are made below the folder of the sandbox, whose part of a dead server the next one removes."""
    started = install_slow_git(tmp_path, monkeypatch)
    monkeypatch.setattr(patches, "_TIMEOUT_S", 1.0)
    with ScriptedModel([EDIT, EDIT]) as model:
        async with repairing_server(model) as server:
            refused = [await call(server, wire, "repair.execute", TASK) for wire in WIRES]
    assert [each.reason for each in refused] == ["SANDBOX_UNAVAILABLE"] * 2
    folder = Path(started.with_name("started.folder").read_text(encoding="utf-8")).parts
    assert f"reasond-sandbox-{os.geteuid()}" in folder
