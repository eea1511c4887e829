"""The settings that turn on counting, the place to read the metrics, and the allowed values of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reasond_server.access.peers import Peers
from reasond_server.assembly.instruments import (
    Telemetry,
    build_metrics_listener,
    build_metrics_page,
    build_telemetry,
    list_label_values,
)
from reasond_server.config import Settings
from reasond_server.grpc_api.guard import TRANSPORT as GRPC
from reasond_server.grpc_api.transcoding import REST
from reasond_server.http_api.http_calls import JSONRPC
from reasond_server.http_api.page_gate import PageGate
from reasond_server.protocols.a2a.a2a_endpoint import A2A
from reasond_server.protocols.mcp.mcp_endpoint import MCP
from reasond_server.protocols.openai_endpoint import MESSAGES, OPENAI, OPENAI_CREATING
from reasond_server.runs.phase import STOP_REASONS
from reasond_server.telemetry.observers import PROGRAM_OUTCOMES, TRANSPORTS, UNOBSERVED, ServerSnapshot
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from reasond_server.types import Principal


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def measure(chosen: Settings) -> Telemetry:
    return build_telemetry(chosen, {}, strategies=["chain_of_thought"], model="demo", look=ServerSnapshot)


async def nobody(token: str) -> Principal:
    raise AssertionError(token)


GATE = PageGate(authenticate=nobody, peers=Peers())


def listener(chosen: Settings) -> Any:
    return build_metrics_listener(chosen, measure(chosen).server_metrics, GATE, new_call_id=lambda: "r")


@pytest.mark.parametrize(
    "off",
    [
        {"reasoning": {"performance": {"enable_metrics": False}}, "metrics": {"address": "127.0.0.1:0"}},
        {"metrics": {"on_http": False}},
        {"server": {"http_address": ""}},
    ],
)
def test_where_nobody_could_read_it_nothing_is_counted(off: dict[str, Any]) -> None:
    found = measure(settings(**off))
    assert found.observer is UNOBSERVED
    assert found.server_metrics is None
    assert build_metrics_page(settings(**off), None, GATE) is None
    assert listener(settings(**off)) is None


def test_by_default_the_http_listener_serves_them_behind_a_gate_and_nothing_else_does() -> None:
    page = build_metrics_page(Settings(), measure(Settings()).server_metrics, GATE)
    assert page is not None
    assert page._gate is GATE
    assert listener(Settings()) is None


@pytest.mark.parametrize(
    ("own", "status"),
    [
        ({"address": "127.0.0.1:0"}, 200),
        ({"address": "0.0.0.0:9464"}, 401),
        ({"address": "0.0.0.0:9464", "allow_anonymous": True}, 200),
    ],
)
async def test_an_own_listener_asks_for_a_token_where_others_reach_it_unless_the_operator_says_otherwise(
    own: dict[str, Any], status: int
) -> None:
    chosen = settings(metrics={"on_http": False} | own, server={"tls": "terminated-upstream"})
    assert build_metrics_page(chosen, measure(chosen).server_metrics, GATE) is None
    # Call the app without its listener, because a test must not open a port to the network.
    transport = httpx.ASGITransport(app=listener(chosen)._app)
    async with make_http_client(transport=transport, base_url="http://here") as client:
        assert (await client.get("/metrics")).status_code == status


def test_an_own_listener_has_the_tls_of_the_others_where_others_reach_it() -> None:
    tls = {"tls": "files", "tls_certificate": "c.pem", "tls_private_key": "k.pem"}
    assert listener(settings(metrics={"address": "127.0.0.1:0"}, server=tls))._tls is None
    assert listener(settings(metrics={"address": "0.0.0.0:0"}, server=tls))._tls.certificate == "c.pem"


def test_every_rpc_and_every_json_rpc_method_is_a_word() -> None:
    words = list_label_values(Settings(), strategies=(), model="")
    assert "reasond.v1.ReasoningService/ReasonIterations" in words["method"]
    assert "reasond.v1.AgentService/GetAgentCard" in words["method"]
    assert "reasoning.execute" in words["method"]
    assert "" not in words["model"]


def test_every_way_in_which_a_run_is_stopped_is_a_word() -> None:
    words = list_label_values(Settings(), strategies=[], model="m")
    assert set(STOP_REASONS.values()) <= words["reason"]
    assert set(PROGRAM_OUTCOMES) <= words["outcome"]


def test_models_backends_and_tools_are_those_that_the_settings_name() -> None:
    chosen = settings(
        llm={"provider": "openai", "model": "big", "backends": {"local": {"model": "small"}}},
        tools={
            "enabled": ["calculator"],
            "http_get": {"allow_hosts": ["example.com"]},
            "mcp": {"files": {"command": "x", "allow_tools": ["read file"]}},
        },
    )
    words = list_label_values(chosen, strategies=["react"], model="big")
    assert words["model"] == {"big", "small"}
    assert words["backend"] == {"llm", "local"}
    assert words["strategy"] == {"react", "repair", "turn"}
    assert {"calculator", "http_get", "read_tool_result", "mode_state_change", "files__other"} < words["tool"]
    assert len(words["tool"]) == 6


def test_every_protocol_is_one_of_the_transports() -> None:
    spoken = {A2A, *(each.transport for each in (JSONRPC, OPENAI, OPENAI_CREATING, MESSAGES, MCP))}
    assert {GRPC, REST, *spoken} == set(TRANSPORTS)
