"""Tools end to end: MCP servers that are real processes, over stdio and HTTP, and runs that call them over gRPC."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, PermissionDeniedError, ReactConfig, TraceView
from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from reasond_server.telemetry.logs import configure
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.tools.execution import Tools
from reasond_server.tools.mcp import IDEMPOTENCY_KEY, McpOptions, McpServer, examine_server
from reasond_server.types import ToolCall, ToolResult
from tests.engines.program_forking import forked_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MODULE = "tests.engines.mcp_program"
PROGRAM = Path(__file__).resolve().parents[1] / "engines" / "mcp_program.py"
OLD_PROGRAM = PROGRAM.with_name("mcp_old_program.py")
LIMIT_S = 180.0


@contextmanager
def over_http(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server process on `port`, or on a free one."""
    process = subprocess.Popen(
        [*forked_command(MODULE), "http", str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def stdio(*args: str, **changed: Any) -> McpOptions:
    command, *first = forked_command(MODULE)
    usual: dict[str, Any] = {
        "name": "t",
        "command": command,
        "args": (*first, *args),
        "connect_timeout_s": LIMIT_S,
    }
    return McpOptions(**usual | changed)


@contextmanager
def logs_to(stream: io.StringIO) -> Iterator[None]:
    """Log to `stream` in the server's format."""
    loggers = [logging.getLogger(name) for name in (None, "uvicorn", "mcp", "client")]
    handlers, levels = loggers[0].handlers[:], [each.level for each in loggers]
    configure(stream, is_human=False)
    try:
        yield
    finally:
        loggers[0].handlers[:] = handlers
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        logging.captureWarnings(False)


class ListedServer(McpServer):
    """Sets `listed` whenever the tools have been listed."""

    def __init__(self, options: McpOptions) -> None:
        super().__init__(options, jitter=lambda: 0.0)
        self.listed = asyncio.Event()

    async def _list_again(self, client: Any) -> None:
        await super()._list_again(client)
        self.listed.set()


@asynccontextmanager
async def connect(options: McpOptions) -> AsyncIterator[ListedServer]:
    server = ListedServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.aclose()


async def call_tool(server: McpServer, tool: str, /, **arguments: object) -> ToolResult:
    box = Tools(servers=[server]).open_toolbox(max_calls=None)
    return await box.call(ToolCall(call_id="c1", name=tool, arguments_json=json.dumps(arguments)))


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    """The port of a server that is started once."""
    with over_http() as (_, port):
        yield port


@pytest.fixture(params=["stdio", "http"])
def options(request: pytest.FixtureRequest) -> McpOptions:
    if request.param == "stdio":
        return stdio(env={"TESTED_SECRET": "told"})
    address = f"http://127.0.0.1:{request.getfixturevalue('http_port')}/mcp"
    return McpOptions(name="t", url=address, headers={"X-Test": "1"}, connect_timeout_s=LIMIT_S)


async def test_the_tools_of_a_server_are_called_and_its_results_mapped(options: McpOptions) -> None:
    async with connect(options) as server:
        told = {tool.name: tool.is_idempotent for tool in server.tools}
        assert {"t__add": True, "t__environment": True, "t__fail": False, "t__parts": False}.items() <= told.items()
        assert "t__large" not in told, "its schema is too large for any prompt"
        odd = next(name for name in told if name.startswith("t__odd_name_"))
        assert (await call_tool(server, "t__add", one=2, other=3)).result_json == '{"result":5}'
        assert (await call_tool(server, odd)).result_json == '{"text":"odd"}'
        assert json.loads((await call_tool(server, "t__parts")).result_json)["content"] == [
            {"type": "text", "text": "seen"},
            {"type": "image", "mime_type": "image/png", "left_out_base64_characters": 8},
        ]
        hostile = (await call_tool(server, "t__hostile")).result_json
        assert "\\u202e" in hostile
        assert "\\u0000" in hostile


async def test_a_call_carries_its_idempotency_key(options: McpOptions) -> None:
    call = ToolCall(call_id="c1", name="t__heard", arguments_json="{}")
    async with connect(options) as server:
        box = Tools(servers=[server]).open_toolbox(max_calls=None)
        results = [await box.call(call, idempotency_key=key) for key in ("", "k1")]
    told = [json.loads(json.loads(result.result_json)["text"]) for result in results]
    assert [each["meta"].get(IDEMPOTENCY_KEY) for each in told] == [None, "k1"]


async def test_a_call_that_fails_or_does_not_fit_is_an_error_result(options: McpOptions) -> None:
    async with connect(options) as server:
        failed = await call_tool(server, "t__fail", why="because")
        assert failed.is_error
        assert "Error executing tool fail" in failed.result_json
        wrong = await call_tool(server, "t__add", one="x", extra=1)
        assert wrong.is_error
        for words in ("one must satisfy type 'integer', got 'x'", "must have 'other'"):
            assert words in json.loads(wrong.result_json)["message"]


async def test_a_call_that_never_ends_is_stopped_and_the_connection_goes_on(options: McpOptions) -> None:
    async with connect(replace(options, timeout_s=2.0)) as server:
        late = await call_tool(server, "t__wait")
        assert late.is_error
        assert "timeout" in late.result_json or "did not answer" in late.result_json
        assert (await call_tool(server, "t__add", one=1, other=1)).result_json == '{"result":2}'


@pytest.mark.parametrize("tool", ["t__misfit", "t__malformed"])
async def test_a_result_that_cannot_be_read_costs_its_call_and_no_other(options: McpOptions, tool: str) -> None:
    async with connect(options) as server:
        waiting = asyncio.create_task(call_tool(server, "t__wait"))
        await asyncio.sleep(0)
        failed = await call_tool(server, tool)
        assert failed.is_error
        assert "cannot be read" in failed.result_json
        assert server.is_connected
        assert not waiting.done(), "the calls of other runs share the connection"
        assert (await call_tool(server, "t__add", one=1, other=1)).result_json == '{"result":2}'
        waiting.cancel()
        await asyncio.wait({waiting})


async def wait_for_tool(server: ListedServer, name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while name not in {tool.name for tool in server.tools}:
            server.listed.clear()
            await server.listed.wait()


async def test_tools_that_a_server_adds_are_offered_to_the_next_run(options: McpOptions) -> None:
    async with connect(options) as server:
        begun = Tools(servers=[server]).open_toolbox(max_calls=None)
        assert not (await call_tool(server, "t__grow")).is_error
        await wait_for_tool(server, "t__grown")
        assert (await call_tool(server, "t__grown")).result_json == '{"text":""}'
        assert "t__grown" not in {spec.name for spec in begun.specs}, "a run keeps the tools that it began with"


async def test_a_server_of_2025_tells_unasked_that_its_tools_changed() -> None:
    async with connect(stdio(command=sys.executable, args=(str(OLD_PROGRAM),))) as server:
        assert [tool.name for tool in server.tools] == ["t__grow"]
        for number in (1, 2):
            await call_tool(server, "t__grow")
            await wait_for_tool(server, f"t__grown_{number}")


async def test_a_result_of_a_server_is_kept_whole() -> None:
    async with connect(stdio()) as server:
        box = Tools(servers=[server]).open_toolbox(max_calls=None)
        call = ToolCall(call_id="c1", name="t__long", arguments_json='{"characters": 3000000}')
        shown = json.loads((await box.call(call)).result_json)
        assert "its end is lost" not in shown["more"]
        assert shown["total_characters"] > 3_000_000
        reading = json.dumps({"handle": "c1", "offset": 2_999_990, "limit": 100})
        read = await box.call(ToolCall(call_id="c2", name="read_tool_result", arguments_json=reading))
    assert "xend" in json.loads(read.result_json)["text"]


async def test_lines_that_are_no_messages_do_not_stop_a_program_or_fill_the_log() -> None:
    lines = io.StringIO()
    with logs_to(lines):
        async with connect(
            stdio(command=sys.executable, args=(str(OLD_PROGRAM), "chatty"), timeout_s=LIMIT_S)
        ) as server:
            assert not (await call_tool(server, "t__grow")).is_error
            await wait_for_tool(server, "t__grown_1")
    assert "secret-of-the-program" not in lines.getvalue()
    told = [line for line in lines.getvalue().splitlines() if "no message" in line]
    assert [json.loads(line)["so_far"] for line in told] == [10**power for power in range(len(told))]
    assert len(told) >= 5, "it printed 12,000 lines and more"
    assert len(lines.getvalue()) < 10_000


async def test_a_program_that_dies_costs_a_call_and_is_started_again() -> None:
    async with connect(stdio()) as server:
        dead = await call_tool(server, "t__die")
        assert dead.is_error
        assert not server.is_connected
        async with asyncio.timeout(LIMIT_S):
            await server.wait_connected()
        assert (await call_tool(server, "t__add", one=1, other=1)).result_json == '{"result":2}'


async def test_an_http_server_that_goes_away_and_comes_back_is_found_again() -> None:
    with over_http() as (process, port):
        async with connect(McpOptions(name="t", url=f"http://127.0.0.1:{port}/mcp")) as server:
            process.kill()
            process.wait()
            assert process.stdout is not None
            assert process.stdout.read() == "", "until the fork has ended, too"
            gone = await call_tool(server, "t__add", one=1, other=1)
            assert gone.is_error
            assert "MCP server 't'" in gone.result_json
            assert server.tools, "what was known stays offered"
            with over_http(port):
                async with asyncio.timeout(LIMIT_S):
                    await server.wait_connected()
                assert (await call_tool(server, "t__add", one=1, other=1)).result_json == '{"result":2}'


async def test_only_allowed_tools_and_variables_are_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    options = stdio(env={"TESTED": "yes"}, allow_tools=("environment", "missing"))
    async with connect(options) as server:
        assert [tool.name for tool in server.tools] == ["t__environment"]
        assert (await call_tool(server, "t__environment", name="TESTED")).result_json == '{"result":"yes"}'
        assert (await call_tool(server, "t__environment", name="PYTEST_CURRENT_TEST")).result_json == '{"result":""}'
    assert "lacks allowed tools" in caplog.text


async def test_a_program_is_ended_with_the_server(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with connect(stdio(command=sys.executable, args=(str(PROGRAM), str(pid_file)))) as server:
        assert server.is_connected
        pid = int(pid_file.read_text(encoding="ascii"))
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not server.is_connected
    assert (await call_tool(server, "t__add", one=1, other=1)).is_error


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": "/no/such/program"},
        {"command": sys.executable, "args": ("-c", "print('no MCP')")},
        {"command": sys.executable, "args": ("-c", "import time; time.sleep(60)"), "connect_timeout_s": 0.3},
        {"command": "", "url": "http://127.0.0.1:9/mcp"},
    ],
)
async def test_a_broken_server_only_delays_the_start(wrong: dict[str, Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        async with connect(stdio(**{"connect_timeout_s": 3.0} | wrong)) as server:
            assert not server.is_connected
            assert server.tools == ()
            assert Tools(servers=[server]).open_toolbox(max_calls=None).specs == ()
        assert await examine_server(stdio(**{"connect_timeout_s": 3.0} | wrong)) is None


async def test_a_run_over_grpc_calls_an_mcp_server_and_the_calculator() -> None:
    command, *args = forked_command(MODULE)
    environ = {
        "REASOND__TOOLS__MCP__TESTED__COMMAND": command,
        "REASOND__TOOLS__MCP__TESTED__ARGS": json.dumps(args),
        "REASOND__TOOLS__MCP__TESTED__CONNECT_TIMEOUT_S": "60",
    }
    calls = (
        ToolCall(call_id="x", name="tested__add", arguments_json='{"one": 2, "other": 3}'),
        ToolCall(call_id="x", name="calculator", arguments_json='{"expression": "2 ** 10"}'),
    )
    model = ScriptedModel([Reply(tool_calls=calls), "<answer>5 and 1024</answer>"], has_native_tools=True)
    async with (
        running_server(model=model, environ=environ) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        result = await client.reason(
            "What is 2 + 3?", config=ReactConfig(allow_tool_use=True), trace_view=TraceView.TRACE_VIEW_FULL
        )
    assert result.answer == "5 and 1024"
    observed = [observation.result_json for observation in result.trace[0].react.observations]
    assert observed == ['{"result":5}', '{"expression":"2 ** 10","result":1024}']
    assert [spec.name for spec in model.requests[0].tools if spec.name.startswith("tested__")]


async def test_tools_need_a_permission_of_their_own() -> None:
    secret = "kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU"
    environ = {"TESTED_KEY": secret, "REASOND__AUTH__KEYS": '[{ id = "one", secret_env = "TESTED_KEY" }]'}
    key = SigningKey(id="one", secret=secret.encode(), algorithm="HS256")
    minter = TokenMinter(key=key, issuer="reasond", audience="reasond", max_lifetime_s=3600)
    async with running_server(environ=environ) as server:
        for permissions, is_allowed in (
            (["reasoning:execute"], False),
            (["reasoning:execute", "reasoning:tools"], True),
        ):
            token = minter.mint(subject="one", permissions=permissions, lifetime_s=60, now=datetime.now(UTC))
            async with AsyncClient(server.grpc, token=token) as client:
                plain = await client.reason("What is 12.5% of 640?", strategy="react")
                assert plain.answer == "80"
                asked = client.reason("What is 12.5% of 640?", config=ReactConfig(allow_tool_use=True))
                if is_allowed:
                    assert (await asked).metrics.react.tool_calls == 1
                else:
                    with pytest.raises(PermissionDeniedError, match="'reasoning:tools'"):
                        await asked
