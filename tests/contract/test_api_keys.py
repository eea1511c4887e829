"""An API key is a bearer like a token, over both wires: same permissions, limits and audit lines, told by its id."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.access.api_keys import KEY_PREFIX, find_key_id
from reasond_server.cli.commands.keys import create, revoke
from reasond_server.config.api_key_file import changing
from reasond_server.http_api.page_gate import CHECK_PATH
from reasond_server.testing import running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    import httpx

    from reasond_server.assembly.app import Listening

QUERY = "What is 6 times 7?"


class Operator:
    """Makes and revokes keys with the commands; `environ` are the settings of the server."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(folder / "keys.json")}

    def make(self, *permissions: str, subject: str = "chat", **options: Any) -> str:
        create(subject=subject, permission=list(permissions), **options, config=None, environ=self.environ)
        return self._capsys.readouterr().out.strip()

    def revoke(self, key: str) -> None:
        revoke(find_key_id(key), config=None, environ=self.environ)

    def end(self, key: str) -> None:
        """Let a key expire an hour ago."""
        with changing(Path(self.environ["REASOND__AUTH__API_KEYS_FILE"])) as rows:
            (place,) = [place for place, row in enumerate(rows) if row.id == find_key_id(key)]
            rows[place] = rows[place].model_copy(update={"expires": datetime.now(UTC) - timedelta(hours=1)})

    @asynccontextmanager
    async def serve(self, **settings: str) -> AsyncGenerator[Listening, None]:
        async with running_server(environ={**self.environ, **settings}) as listening:
            yield listening


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Operator:
    caplog.set_level(logging.DEBUG)
    return Operator(tmp_path, capsys)


async def over_grpc(listening: Listening, key: str, name: str = "") -> str:
    """Return the reason of the refusal; empty if there is none."""
    async with reasond.AsyncClient(listening.grpc, token=key) as client:
        try:
            await (client.get_execution(name) if name else client.reason(QUERY))
        except reasond.ReasondError as error:
            return error.reason
    return ""


async def over_header(listening: Listening, key: str, name: str = "") -> str:
    return await _post(listening, {}, {"authorization": f"Bearer {key}"}, name)


async def over_params(listening: Listening, key: str, name: str = "") -> str:
    return await _post(listening, {"auth_token": key}, {}, name)


async def _post(listening: Listening, params: Mapping[str, str], headers: Mapping[str, str], name: str) -> str:
    method, own = ("executions.get", {"execution_id": name}) if name else ("reasoning.execute", {"query": QUERY})
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**own, **params}}
    async with make_http_client(base_url=listening.http) as client:
        answer = (await client.post("/api/v1/jsonrpc", json=body, headers=dict(headers), timeout=180)).json()
    return str(answer.get("error", {}).get("data", {}).get("reason", ""))


WIRES = pytest.mark.parametrize("call", [over_grpc, over_header, over_params])


def await_reload() -> asyncio.Event:
    """Return an event that is set when the server has read its configuration again, here in the same thread."""
    done = asyncio.Event()
    log = logging.getLogger("reasond.config")

    def note(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("configuration read again"):
            done.set()
            log.removeFilter(note)
        return True

    log.addFilter(note)
    return done


def read_audit(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    lines: list[dict[str, Any]] = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
    return [(line["outcome"], line["subject"], line.get("key_id", "")) for line in lines]


def everything_logged(caplog: pytest.LogCaptureFixture) -> str:
    return json.dumps([{name: str(value) for name, value in vars(record).items()} for record in caplog.records])


@WIRES
async def test_a_key_is_accepted_and_told_by_its_id(
    operator: Operator, caplog: pytest.LogCaptureFixture, call: Any
) -> None:
    key = operator.make("reasoning:execute", tenant="acme")
    async with operator.serve() as listening:
        assert await call(listening, key) == ""
        async with make_http_client(base_url=listening.http) as client:
            page = await client.get("/metrics", headers={"authorization": f"Bearer {listening.token}"})

    assert read_audit(caplog) == [("allowed", "chat", find_key_id(key))]
    assert f'reasond_api_key_uses_total{{key_id="{find_key_id(key)}",outcome="accepted"}} 1.0' in page.text
    secret = key.removeprefix(f"{KEY_PREFIX}{find_key_id(key)}-")
    assert secret not in everything_logged(caplog)
    assert secret not in page.text


@WIRES
async def test_a_key_that_is_revoked_is_refused_without_a_restart_and_another_one_is_accepted(
    operator: Operator, caplog: pytest.LogCaptureFixture, call: Any
) -> None:
    key = operator.make("reasoning:execute")
    async with operator.serve() as listening:
        assert await call(listening, key) == ""
        fresh = operator.make("reasoning:execute", subject="other")
        operator.revoke(key)
        applied = await_reload()
        async with asyncio.timeout(120):
            await applied.wait()
        assert await call(listening, key) == "TOKEN_INVALID"
        assert await call(listening, fresh) == ""

    lines = read_audit(caplog)
    assert ("denied", "", find_key_id(key)) in lines
    assert lines[-1] == ("allowed", "other", find_key_id(fresh))


@WIRES
async def test_a_key_permits_what_it_was_made_for_and_no_more(operator: Operator, call: Any) -> None:
    reader, one = operator.make("executions:read"), operator.make("reasoning:execute:bounded_context")
    async with operator.serve() as listening:
        assert await call(listening, reader) == "PERMISSION_MISSING"
        # The strategy that answers by default is another one.
        assert await call(listening, one) == "PERMISSION_MISSING"
        async with reasond.AsyncClient(listening.grpc, token=listening.token) as client:
            foreign = (await client.reason(QUERY)).execution_id
        assert await call(listening, reader, foreign) == "EXECUTION_NOT_FOUND"


@WIRES
async def test_limits_hold_for_a_key_as_for_a_token(operator: Operator, call: Any) -> None:
    key, same, other = (operator.make("reasoning:execute", subject=name) for name in ("chat", "chat", "ci"))
    async with operator.serve(REASOND__LIMITS__REQUESTS_PER_MINUTE="1") as listening:
        assert await call(listening, key) == ""
        # A second key of the same subject is the same caller.
        assert await call(listening, same) == "RATE_LIMITED"
        assert await call(listening, other) == ""


@WIRES
async def test_a_wrong_or_ended_key_is_refused(operator: Operator, caplog: pytest.LogCaptureFixture, call: Any) -> None:
    key, ended = operator.make("admin"), operator.make("admin", lifetime="1h")
    operator.end(ended)
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    async with operator.serve() as listening:
        assert await call(listening, wrong) == "TOKEN_INVALID"
        assert await call(listening, ended) == "TOKEN_EXPIRED"

    # The id of a wrong key is any caller's text.
    assert read_audit(caplog) == [("denied", "", ""), ("denied", "", find_key_id(ended))]


async def test_a_client_of_openai_calls_with_a_key(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    key = operator.make("reasoning:execute")
    body = {"model": "reasond", "messages": [{"role": "user", "content": QUERY}]}
    async with (
        operator.serve(REASOND__OPENAI__ENABLED="true") as listening,
        make_http_client(base_url=listening.http, timeout=180) as client,
    ):
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        wrong = await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}A"})

    assert answer.json()["choices"][0]["message"]["content"] == "42"
    assert wrong.status_code == 401
    assert read_audit(caplog)[0] == ("allowed", "chat", find_key_id(key))


async def test_a_proxy_that_asks_is_told_whether_a_key_is_good(operator: Operator) -> None:
    key = operator.make("reasoning:execute", tenant="acme")
    async with operator.serve() as listening, make_http_client(base_url=listening.http, timeout=180) as client:

        async def ask() -> httpx.Response:
            return await client.post(CHECK_PATH, headers={"authorization": f"Bearer {key}"})

        assert (await ask()).json() == {"subject": "chat", "tenant": "acme"}
        operator.revoke(key)
        applied = await_reload()
        async with asyncio.timeout(120):
            await applied.wait()
        assert (await ask()).status_code == 401
