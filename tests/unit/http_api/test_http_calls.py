"""The order of the checks of a call, and the contents of its errors."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.access.permissions import require_permission
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
from reasond_server.http_api.exchange import Exchange, RequestHeaders
from reasond_server.http_api.http_app import frames
from reasond_server.http_api.http_calls import Calls, Gate
from reasond_server.telemetry.observers import Observer
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import Principal
from tests.unit.http_api.parts import methods_of, verifier

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatRequest
    from tests.unit.http_api.parts import ServeSite, Site


async def test_an_unknown_method_is_told_before_anything_else_and_the_nearest_one_named(site: Site) -> None:
    response = await site.post({"jsonrpc": "2.0", "method": "reasoning.exekute", "params": [1], "id": 1})
    error = response.json()["error"]
    assert error["code"] == -32601
    assert error["message"] == "Method not found: 'reasoning.exekute'; did you mean 'reasoning.execute'?"
    assert error["data"]["reason"] == "METHOD_NOT_FOUND"


async def test_positional_params_are_refused(site: Site) -> None:
    response = await site.post(
        {"jsonrpc": "2.0", "method": "reasoning.execute", "params": ["q"], "id": 1},
        authorization=f"Bearer {site.token()}",
    )
    error = response.json()["error"]
    assert (error["code"], error["data"]["violations"][0]["field"]) == (-32602, "params")


async def test_who_calls_is_asked_before_what(site: Site) -> None:
    for params, reason in [
        ({"nonsense": 1}, "TOKEN_MISSING"),
        ({"auth_token": "x.y.z", "nonsense": 1}, "TOKEN_INVALID"),
        ({"auth_token": site.token("agents:write"), "nonsense": 1}, "PERMISSION_MISSING"),
        ({"auth_token": site.token("reasoning:execute"), "nonsense": 1}, "INVALID_REQUEST"),
    ]:
        response = await site.post({"jsonrpc": "2.0", "method": "reasoning.execute", "params": params, "id": 1})
        assert response.json()["error"]["data"]["reason"] == reason


async def test_the_header_is_as_good_as_the_parameter_but_they_must_agree(site: Site) -> None:
    token = site.token()
    request = {"jsonrpc": "2.0", "method": "reasoning.list_strategies", "id": 1}
    assert "result" in (await site.post(request, authorization=f"Bearer {token}")).json()
    both = {**request, "params": {"auth_token": token}}
    assert "result" in (await site.post(both, authorization=f"Bearer {token}")).json()
    error = (await site.post(both, authorization=f"Bearer {token}x")).json()["error"]
    assert (error["code"], error["data"]["reason"]) == (-32603, "TOKEN_INVALID")


async def test_a_token_that_may_use_one_strategy_only_is_refused_another(site: Site) -> None:
    narrow = site.token("reasoning:execute:bounded_context")
    allowed = await site.call("reasoning.bounded_context", {"auth_token": narrow, "query": "q"})
    assert "result" in allowed
    refused = await site.call("reasoning.chain_of_thought", {"auth_token": narrow, "query": "q"})
    assert refused["error"]["data"]["reason"] == "PERMISSION_MISSING"


async def test_options_of_streams_are_refused_without_one(site: Site) -> None:
    error = (await site.call("reasoning.execute", {"query": "q", "include_deltas": True}))["error"]
    assert error["data"]["violations"][0]["field"] == "include_deltas"


async def test_a_run_that_fails_after_a_step_leaves_its_partial_result_in_the_error(serve_site: ServeSite) -> None:
    replies = iter(
        [
            Reply(text="Thinking.<continue>notes</continue>"),
            Reply(text="half a th", error=ModelFailedError("the model broke off")),
        ]
    )
    site = await serve_site(FunctionModel(lambda _: next(replies)))
    error = (await site.call("reasoning.bounded_context", {"query": "q"}))["error"]
    assert (error["code"], error["data"]["reason"]) == (-32603, "MODEL_FAILED")
    partial = error["data"]["partial"]
    assert partial["finish_reason"] == "failed"
    assert partial["error"]["reason"] == "MODEL_FAILED"
    assert [step["content"] for step in partial["trace"]] == ["Thinking.notes", "half a th"]
    assert partial["metrics"]["total_tokens"] > 0
    got = await site.call("executions.get", {"execution_id": partial["execution_id"]})
    assert got["result"]["reasoning"] == partial


async def test_waiting_is_advised_in_milliseconds(serve_site: ServeSite) -> None:
    def refuse(_request: ChatRequest) -> Reply:
        return Reply(error=ModelUnavailableError("the model is away", retry_after_s=2.5))

    site = await serve_site(FunctionModel(refuse))
    error = (await site.call("reasoning.execute", {"query": "q"}))["error"]
    assert (error["data"]["reason"], error["data"]["retry_after_ms"]) == ("MODEL_UNAVAILABLE", 2500)


async def test_a_foreign_error_tells_its_request_id_alone_and_is_logged(
    serve_site: ServeSite, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        message = "secret of the database"
        raise LookupError(message)

    site = await serve_site(require_permission=fail)
    with caplog.at_level(logging.ERROR, logger="reasond.http"):
        answer = await site.call("reasoning.list_strategies", x_request_id="trace-7")
    assert answer["error"] == {
        "code": -32603,
        "message": "internal error",
        "data": {"reason": "INTERNAL", "grpc_code": "INTERNAL", "request_id": "trace-7"},
    }
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.__dict__["call_id"] == "trace-7"
    assert "secret of the database" in caplog.text


async def test_a_stray_cancellation_inside_a_method_is_an_answer_not_a_hang(serve_site: ServeSite) -> None:
    def stray(*_: Any) -> None:
        raise asyncio.CancelledError

    site = await serve_site(require_permission=stray)
    answer = await site.call("reasoning.list_strategies")
    assert answer["error"]["data"]["reason"] == "INTERNAL"


class Waiting:
    """A service that never answers."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.desk = self

    async def list(self, *_: Any, **__: Any) -> None:
        self.is_asked.set()
        await asyncio.Event().wait()

    async def stream(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        await self.list()
        yield


class Ends(Observer):
    """Records the codes with which calls ended."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def call_ended(self, transport: str, method: str, code: str, duration_s: float) -> None:
        del transport, method, duration_s
        self.codes.append(code)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_who_leaves_before_the_end_is_no_success_and_stands_in_the_audit_log(
    site: Site, caplog: pytest.LogCaptureFixture, *, is_stream: bool
) -> None:
    caplog.set_level(logging.INFO, logger="reasond.audit")
    service: Any = Waiting()
    ends, exchange = Ends(), Exchange(call_id="r-1", headers=RequestHeaders())
    gate = Gate(authenticate=verifier().verify, require=require_permission)
    calls = Calls(methods=methods_of(service, site.agents), gate=gate, exchange=exchange, observer=ends)
    asked = {"auth_token": site.token(), "query": "q"} if is_stream else {"auth_token": site.token()}

    async def call() -> None:
        if is_stream:
            async for _ in frames(calls.open("reasoning.execute"), asked, None):
                pass
        await calls.call("executions.list", asked)

    task = asyncio.create_task(call())
    await service.is_asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends.codes == ["CANCELLED"]
    (record,) = [one for one in caplog.records if one.name == "reasond.audit"]
    told = record.__dict__
    assert (told["outcome"], told["subject"], told["call_id"]) == ("allowed", "alice", "r-1")


async def test_the_token_stands_in_no_answer_and_no_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = site.token()
    answers = [
        await site.call("reasoning.execute", {"auth_token": token, "query": "q"}),
        await site.call("reasoning.execute", {"auth_token": token, "nonsense": 1}),
        await site.call("reasoning.execute", {"auth_token": token, "query": 5}),
        await site.call("reasoning.execute", {"auth_token": f"{token}x"}),
    ]
    assert token not in str(answers)
    assert token not in caplog.text
    assert all(token not in str(record.__dict__) for record in caplog.records if record.name.startswith("reasond"))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_params_that_are_refused_go_without_the_garbage_collector(site: Site, *, is_stream: bool) -> None:
    """A caller could fill the memory with large params before the collector runs."""

    class Params(dict[str, Any]):
        """Params that allow a weak reference, which a plain dict does not."""

    async def authenticate(_token: str) -> Principal:
        return Principal(subject="ann", tenant="acme", permissions=frozenset({"admin"}))

    exchange = Exchange(call_id="mine", headers=RequestHeaders([(b"authorization", b"Bearer good")]))
    methods = methods_of(site.core.reasoning, site.agents)
    calls = Calls(methods=methods, gate=Gate(authenticate=authenticate, require=require_permission), exchange=exchange)
    params = Params(query="x" * 1_000_000)
    seen = weakref.ref(params)
    gc.disable()
    try:
        if is_stream:
            (event,) = [event async for event in frames(calls.open("reasoning.execute"), params, None)]
            assert event.startswith(b"event: error")
        else:
            assert "error" in await calls.call("reasoning.execute", params)
        del params
        assert seen() is None
    finally:
        gc.enable()
