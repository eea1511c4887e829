from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2
from google.protobuf import duration_pb2, json_format

from reasond.v1 import agent_card_pb2
from reasond.v1 import agent_service_pb2 as pb
from reasond_server.agents.cards import build_server_card
from reasond_server.agents.directory import AgentDirectory, AgentService
from reasond_server.grpc_api.agent_servicer import build_card_message, write_card_text
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from tests.unit.grpc_api.parts import AUTHORIZED, get_error, serving

NOW = datetime(2026, 11, 21, tzinfo=UTC)
CARD: dict[str, Any] = {
    "name": "Größenrechner",
    "description": "Rechnet.",
    "version": "1.0.0",
    "supportedInterfaces": [{"url": "https://a.example", "protocolBinding": "GRPC", "protocolVersion": "1.0"}],
    "provider": {"url": "https://a.example", "organization": "A"},
    "documentationUrl": "https://a.example/docs",
    "capabilities": {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": True,
        "extensions": [{"uri": "urn:x", "description": "x", "required": True, "params": {"a": [1, {"b": None}]}}],
    },
    "securitySchemes": {
        "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}},
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "x-key"}},
        "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://i.example"}},
        "tls": {"mtlsSecurityScheme": {"description": "mutual"}},
        "oauth": {
            "oauth2SecurityScheme": {
                "flows": {"clientCredentials": {"tokenUrl": "https://i.example/t", "scopes": {"read": "reads"}}},
                "oauth2MetadataUrl": "https://i.example/m",
            }
        },
        "code": {
            "oauth2SecurityScheme": {
                "flows": {
                    "authorizationCode": {
                        "authorizationUrl": "https://i.example/a",
                        "tokenUrl": "https://i.example/t",
                        "scopes": {"read": "reads"},
                        "pkceRequired": True,
                    }
                }
            }
        },
        "device": {
            "oauth2SecurityScheme": {
                "flows": {
                    "deviceCode": {
                        "deviceAuthorizationUrl": "https://i.example/d",
                        "tokenUrl": "https://i.example/t",
                        "scopes": {"read": "reads"},
                    }
                }
            }
        },
    },
    "securityRequirements": [{"schemes": {"oauth": {"list": ["read"]}}}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [
        {
            "id": "reasoning.strategy.bounded_context",
            "name": "Bounded context",
            "description": "Reads.",
            "tags": ["long"],
            "examples": ["Read this."],
            "inputModes": ["text/plain"],
            "outputModes": ["text/plain"],
            "securityRequirements": [{"schemes": {"bearer": {}}}],
        }
    ],
    "signatures": [{"protected": "cA", "signature": "cw", "header": {"kid": "1"}}],
    "iconUrl": "https://a.example/icon.png",
}


def service(now: datetime = NOW) -> AgentService:
    def own() -> dict[str, Any]:
        return build_server_card(
            name="reasond",
            version="0.1.0",
            grpc_url="grpc://127.0.0.1:50051",
            jsonrpc_url="http://127.0.0.1:8001/api/v1/jsonrpc",
            strategies={"bounded_context": "Reads long texts."},
            supported_methods=["reasoning.execute"],
        )

    directory = AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=10, now=lambda: now)
    return AgentService(directory=directory, server_card=own, max_card_bytes=262_144)


def test_our_card_and_a2as_are_the_same_bytes() -> None:
    ours = build_card_message(CARD)
    theirs = json_format.ParseDict(CARD, a2a_pb2.AgentCard())

    assert agent_card_pb2.AgentCard.FromString(theirs.SerializeToString()) == ours
    assert a2a_pb2.AgentCard.FromString(ours.SerializeToString()) == theirs
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def test_our_card_and_a2as_are_the_same_json() -> None:
    theirs = json_format.Parse(write_card_text(build_card_message(CARD)), a2a_pb2.AgentCard())

    assert json_format.MessageToDict(theirs) == CARD
    assert json.loads(write_card_text(agent_card_pb2.AgentCard.FromString(theirs.SerializeToString()))) == CARD


def test_both_cards_declare_the_same_fields() -> None:
    def fields(descriptor: Any, seen: set[str]) -> set[tuple[str, str, int, str]]:
        found = set()
        for field in descriptor.fields:
            found.add((descriptor.name, field.name, field.number, field.json_name))
            if field.message_type and field.message_type.name not in seen:
                seen.add(field.message_type.name)
                found |= fields(field.message_type, seen)
        return found

    assert fields(agent_card_pb2.AgentCard.DESCRIPTOR, set()) == fields(a2a_pb2.AgentCard.DESCRIPTOR, set())


def test_fields_that_a2a_lacks_are_left_out_of_the_message() -> None:
    assert build_card_message({**CARD, "futureField": {"x": 1}}) == build_card_message(CARD)


def test_a_card_that_no_message_can_hold_keeps_its_plain_fields() -> None:
    odd = build_card_message({"name": "n", "description": "d", "version": "1", "skills": "none"})

    assert odd == agent_card_pb2.AgentCard(name="n", description="d", version="1")


async def test_the_card_of_this_server_names_its_methods_and_capabilities() -> None:
    async with serving(agents=service()) as served:
        found = await served.agents.GetAgentCard(pb.GetAgentCardRequest(), metadata=AUTHORIZED)

    assert found.card.name == "reasond"
    assert json.loads(found.card_json)["name"] == "reasond"
    assert "reasoning.execute" in found.supported_methods
    assert "reasoning.strategy.bounded_context" in found.capabilities
    assert found.etag


async def test_a_card_is_registered_kept_verbatim_listed_and_deleted() -> None:
    text = json.dumps(CARD, indent=3)
    async with serving(agents=service()) as served:
        agents = served.agents
        request = pb.RegisterAgentRequest(agent_id="a.1", card_json=text, ttl=duration_pb2.Duration(seconds=60))
        kept = (await agents.RegisterAgent(request, metadata=AUTHORIZED)).agent
        found = await agents.GetAgentCard(pb.GetAgentCardRequest(agent_id="a.1"), metadata=AUTHORIZED)
        filtered = pb.ListAgentsRequest(capabilities=["reasoning.strategy.bounded_context"])
        listed = await agents.ListAgents(filtered, metadata=AUTHORIZED)
        none = await agents.ListAgents(pb.ListAgentsRequest(capabilities=["flying"]), metadata=AUTHORIZED)
        await agents.DeleteAgent(pb.DeleteAgentRequest(agent_id="a.1", etag=kept.etag), metadata=AUTHORIZED)
        code, _, details = await get_error(
            agents.GetAgentCard(pb.GetAgentCardRequest(agent_id="a.1"), metadata=AUTHORIZED)
        )

    assert (found.card_json, found.card, found.etag) == (text, build_card_message(CARD), kept.etag)
    assert kept.expire_time.seconds - kept.create_time.seconds == 60
    assert list(kept.strategies) == ["bounded_context"]
    assert [agent.agent_id for agent in listed.agents] == ["a.1"]
    assert list(none.agents) == []
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.NOT_FOUND, "AGENT_NOT_FOUND")


async def test_a_card_as_a_message_is_kept_as_its_json() -> None:
    async with serving(agents=service()) as served:
        request = pb.RegisterAgentRequest(agent_id="a", card=build_card_message(CARD))
        kept = (await served.agents.RegisterAgent(request, metadata=AUTHORIZED)).agent

    assert json.loads(kept.card_json) == CARD
    assert kept.card == build_card_message(CARD)
    assert not kept.HasField("expire_time")


async def test_the_small_card_of_seed_000_is_accepted() -> None:
    small = {"id": "small", "capabilities": ["reasoning.strategy.bounded_context"], "supported_methods": ["x"]}
    async with serving(agents=service()) as served:
        request = pb.RegisterAgentRequest(card_json=json.dumps(small))
        kept = (await served.agents.RegisterAgent(request, metadata=AUTHORIZED)).agent

    assert (kept.agent_id, list(kept.strategies)) == ("small", ["bounded_context"])


async def test_an_etag_guards_against_lost_updates() -> None:
    async with serving(agents=service()) as served:
        request = pb.RegisterAgentRequest(agent_id="a", card=build_card_message(CARD))
        await served.agents.RegisterAgent(request, metadata=AUTHORIZED)
        request.etag = "old"
        code, _, details = await get_error(served.agents.RegisterAgent(request, metadata=AUTHORIZED))

    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.ABORTED, "ETAG_MISMATCH")


def infinite_card() -> agent_card_pb2.AgentCard:
    card = build_card_message(CARD)
    card.capabilities.extensions[0].params.fields["a"].number_value = float("inf")
    return card


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("RegisterAgent", pb.RegisterAgentRequest(agent_id="a"), "card"),
        ("RegisterAgent", pb.RegisterAgentRequest(agent_id="a", card=infinite_card()), "card"),
        (
            "RegisterAgent",
            pb.RegisterAgentRequest(
                agent_id="a", card=build_card_message(CARD), ttl=duration_pb2.Duration(seconds=1, nanos=-1)
            ),
            "ttl",
        ),
        ("DeleteAgent", pb.DeleteAgentRequest(), "agent_id"),
    ],
)
async def test_a_field_that_is_missing_or_malformed_is_named(method: str, request_: Any, field: str) -> None:
    async with serving(agents=service()) as served:
        code, _, details = await get_error(getattr(served.agents, method)(request_, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == field
