"""The conformance suite of MCP, unmodified, against a real server: every scenario that applies passes.

The suite wants a server made for it, with tools such as `slow_compute`. `conformance_adapter` gives ours those names
where it has a tool with that effect. What asks for anything else is named here, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from reasond_server.errors.model import ModelUnavailableError
from reasond_server.testing import FunctionModel, Reply, running_server
from scripts.typescript_client import newest_node
from tests.mcp_hosts.conformance_adapter import adapting
from tests.openai_clients.client_environments import install_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.llm.model import ChatRequest

# The first run installs the suite.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PACKAGE: Final = Path(__file__).with_name("conformance.json")
INPUT: Final = "no tool asks its caller for input: approvals are given in turns, over other protocols"
PROMPTS: Final = "there are no prompts"
MEDIA: Final = "answers are texts"
NOT_SERVED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "elicitation-sep1034-defaults",
            "elicitation-sep1330-enums",
            "input-required-result-basic-elicitation",
            "input-required-result-basic-list-roots",
            "input-required-result-basic-sampling",
            "input-required-result-capability-check",
            "input-required-result-multi-round",
            "input-required-result-multiple-input-requests",
            "input-required-result-non-tool-request",
            "input-required-result-result-type",
            "tasks-mrtr-composition",
            "tasks-mrtr-input",
            "tools-call-elicitation",
            "tools-call-sampling",
        ),
        INPUT,
    ),
    **dict.fromkeys(
        ("input-required-result-request-state", "input-required-result-tampered-state"),
        "a state of ours comes without requests for input; tests/unit/protocols/mcp changes each part of one",
    ),
    **dict.fromkeys(
        (
            "prompts-get-embedded-resource",
            "prompts-get-simple",
            "prompts-get-with-args",
            "prompts-get-with-image",
            "prompts-list",
        ),
        PROMPTS,
    ),
    "completion-complete": "no argument is completed",
    **dict.fromkeys(
        (
            "resources-read-binary",
            "tools-call-audio",
            "tools-call-embedded-resource",
            "tools-call-image",
            "tools-call-mixed-content",
        ),
        MEDIA,
    ),
    **dict.fromkeys(
        ("resources-subscribe", "resources-unsubscribe"), "executions are polled, or followed over other protocols"
    ),
    **dict.fromkeys(("logging-set-level", "tools-call-with-logging"), "logs are the operator's"),
    "json-schema-2020-12": "the suite wants the schema of a tool of its own",
    "tasks-required-task-error": "every tool answers clients without tasks too",
}
"""Scenarios that ask for what this server has not."""
PARTS: Final[Mapping[str, set[str]]] = {
    "caching": {"sep-2549-prompts-list-caching-hints"},
    "http-custom-header-server-validation": {
        "sep-2243-server-decode-base64",
        "sep-2243-server-no-xmcp-tool",
        "sep-2243-server-reject-invalid-param-chars",
        "sep-2243-server-reject-param-mismatch",
        "sep-2243-server-validate-param-match",
    },
    "server-stateless": {
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-missing-capability-http-400",
        "sep-2575-server-no-log-without-loglevel",
        "sep-2575-server-rejects-undeclared-capability",
    },
}
"""Checks of scenarios that are served otherwise; they need prompts, or tools with input, logs or own headers."""
LEAST: Final = 188
"""How many checks pass."""


def reply(request: ChatRequest) -> Reply | str:
    """Do what the tools of the fixture do."""
    text = str(request.messages[-1].content)
    if "protocol_error_job" in text:
        message = "a fault"
        raise TypeError(message)
    if "failing_job" in text:
        return Reply(error=ModelUnavailableError("the model is down"))
    if slow := re.search(r"slow_compute .*\"seconds\": (\d+)", text):
        ready = asyncio.Event()
        asyncio.get_running_loop().call_later(float(slow[1]), ready.set)
        return Reply(text="done", hold=ready)
    if greeted := re.search(r"greet (.*)\.", text):
        return f"Hello, {greeted[1]}!"
    return "This is a simple text response for testing."


async def test_every_scenario_that_applies_passes(tmp_path: Path) -> None:
    _, home = await asyncio.to_thread(install_packages, "conformance", PACKAGE)
    node = await asyncio.to_thread(newest_node)
    program = home / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    async with running_server(model=FunctionModel(reply)) as listening, adapting(listening) as url:
        for chosen in (("--suite", "all"), ("--requirements", "2025-11-25")):
            process = await asyncio.create_subprocess_exec(
                *(node, program, "server", "--url", url, *chosen, "--output-dir", tmp_path / chosen[1]),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            printed, _ = await process.communicate()
    passed, failed = count_checks(tmp_path)
    assert failed.keys() == NOT_SERVED.keys() | PARTS.keys(), printed.decode()
    assert {scenario: failed[scenario] for scenario in PARTS} == PARTS
    assert passed >= LEAST


def count_checks(folder: Path) -> tuple[int, dict[str, set[str]]]:
    """Return how many checks passed, and those that failed by scenario."""
    failed: dict[str, set[str]] = {}
    passed = 0
    for path in folder.glob("*/*/checks.json"):
        scenario = re.sub(r"-\d{4}-\d{2}-\d{2}T.*$", "", path.parent.name.removeprefix("server-"))
        for check in json.loads(path.read_text("utf-8")):
            passed += check["status"] == "SUCCESS"
            if check["status"] == "FAILURE":
                failed.setdefault(scenario, set()).add(check["id"])
    return passed, failed
