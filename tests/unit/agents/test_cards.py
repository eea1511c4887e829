from __future__ import annotations

import json
import re
from typing import Any

import pytest
from a2a.types import AgentCard as SdkAgentCard
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import ParseDict

from reasond.v1 import agent_card_pb2
from reasond_server.agents.cards import (
    EXTENSION,
    GRPC_BINDING,
    JSONRPC_BINDING,
    MAX_DEPTH,
    _to_violation,
    build_server_card,
    compute_etag,
    encode_card,
    list_strategies,
    parse_card,
)
from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError

LIMIT = 262_144
SCHEMES = (
    "apiKeySecurityScheme",
    "httpAuthSecurityScheme",
    "oauth2SecurityScheme",
    "openIdConnectSecurityScheme",
    "mtlsSecurityScheme",
)

# Seed 000, Feature 5, verbatim.
SMALL_CARD = """{
  "id": "reasoning-agent-1",
  "capabilities": [
    "reasoning.strategy.bounded_context",
    "reasoning.strategy.chain_of_thought"
  ],
  "supported_methods": ["reasoning.execute"]
}
"""

# Seed 000, FR-7.1, verbatim.
CAPABILITIES_ONLY = """{
  "capabilities": [
    "reasoning.strategy.bounded_context",
    "reasoning.strategy.chain_of_thought",
    "reasoning.strategy.react"
  ]
}"""


def a2a_card(**changes: object) -> dict[str, Any]:
    """Return a card with all required fields and `changes`."""
    card: dict[str, Any] = {
        "name": "Reader",
        "description": "Reads long texts.",
        "supportedInterfaces": [
            {"url": "https://reader.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "version": "2.1",
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {"id": "summarise", "name": "Summarise", "description": "Shortens.", "tags": ["text"]},
            {"id": "reasoning.strategy.bounded_context", "name": "b", "description": "d", "tags": ["reasoning"]},
            {"id": "reasoning.strategy.chain_of_thought", "name": "c", "description": "d", "tags": ["reasoning"]},
        ],
    }
    return card | changes


def full_card() -> dict[str, Any]:
    """Return a card in which every field of A2A 1.0 is set."""
    requirement = {"schemes": {"oauth": {"list": ["read"]}}}
    scopes = {"read": "Reads."}
    flows: list[dict[str, Any]] = [
        {"authorizationCode": {"authorizationUrl": "a", "tokenUrl": "t", "refreshUrl": "r", "scopes": scopes}},
        {"clientCredentials": {"tokenUrl": "t", "refreshUrl": "r", "scopes": scopes}},
        {"implicit": {"authorizationUrl": "a", "refreshUrl": "r", "scopes": scopes}},
        {"password": {"tokenUrl": "t", "refreshUrl": "r", "scopes": scopes}},
        {"deviceCode": {"deviceAuthorizationUrl": "d", "tokenUrl": "t", "refreshUrl": "r", "scopes": scopes}},
    ]
    flows[0]["authorizationCode"]["pkceRequired"] = True
    schemes: dict[str, Any] = {
        f"oauth{index}": {"oauth2SecurityScheme": {"description": "d", "flows": flow, "oauth2MetadataUrl": "m"}}
        for index, flow in enumerate(flows)
    }
    schemes |= {
        "key": {"apiKeySecurityScheme": {"description": "d", "location": "header", "name": "X-Key"}},
        "http": {"httpAuthSecurityScheme": {"description": "d", "scheme": "Bearer", "bearerFormat": "JWT"}},
        "oidc": {"openIdConnectSecurityScheme": {"description": "d", "openIdConnectUrl": "u"}},
        "mtls": {"mtlsSecurityScheme": {"description": "d"}},
    }
    card = a2a_card(
        provider={"url": "https://reader.example", "organization": "Reader & Co"},
        documentationUrl="https://reader.example/docs",
        capabilities={
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": True,
            "extensions": [
                {"uri": "urn:x", "description": "d", "required": True, "params": {"a": [1, None, {"b": 2.5}]}}
            ],
        },
        securitySchemes=schemes,
        securityRequirements=[requirement],
        signatures=[{"protected": "p", "signature": "s", "header": {"kid": "k"}}],
        iconUrl="https://reader.example/icon.png",
    )
    card["supportedInterfaces"][0]["tenant"] = "acme"
    card["skills"][0] |= {
        "examples": ["e"],
        "inputModes": ["text/plain"],
        "outputModes": ["text/plain"],
        "securityRequirements": [requirement],
    }
    return card


def violations(text: str, max_bytes: int = LIMIT) -> dict[str, str]:
    """Return the violations of the card in `text`, by field."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_card(text, max_bytes=max_bytes)
    return {violation.field: violation.description for violation in caught.value.violations}


def test_an_a2a_card_is_kept_verbatim_and_its_skills_become_capabilities() -> None:
    text = json.dumps(a2a_card(futureField={"x": [1]}), indent=3)
    parsed = parse_card(text, max_bytes=LIMIT)
    assert parsed.card_json == text
    assert parsed.card["futureField"] == {"x": [1]}
    assert parsed.agent_id is None
    assert parsed.capabilities == (
        "summarise",
        "reasoning.strategy.bounded_context",
        "reasoning.strategy.chain_of_thought",
    )
    assert parsed.strategies == ("bounded_context", "chain_of_thought")
    assert parsed.strategy_config == {}


def test_a_card_with_every_field_passes_and_converts_to_our_message_and_a2as() -> None:
    parsed = parse_card(json.dumps(full_card()), max_bytes=LIMIT)
    ours = ParseDict(dict(parsed.card), agent_card_pb2.AgentCard())
    theirs = ParseDict(dict(parsed.card), SdkAgentCard())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    validate_proto_required_fields(theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"provider": None},
        {"signatures": None},
        {"capabilities": {"extensions": None}},
        {"@type": "x", "$ref": 1, "": 2},
    ],
)
def test_nulls_and_odd_names_that_pass_also_convert(change: dict[str, Any]) -> None:
    parsed = parse_card(json.dumps(a2a_card(**change)), max_bytes=LIMIT)
    assert ParseDict(dict(parsed.card), agent_card_pb2.AgentCard(), ignore_unknown_fields=True).name == "Reader"


def test_the_small_card_of_seed_000_becomes_an_a2a_card_with_skills() -> None:
    parsed = parse_card(SMALL_CARD, max_bytes=LIMIT)
    assert parsed.card_json == SMALL_CARD
    assert parsed.agent_id == "reasoning-agent-1"
    assert parsed.strategies == ("bounded_context", "chain_of_thought")
    assert parsed.supported_methods == ("reasoning.execute",)
    assert [skill["id"] for skill in parsed.card["skills"]] == list(parsed.capabilities)
    assert parsed.card["skills"][0]["tags"] == ["reasoning", "bounded_context"]
    assert ParseDict(dict(parsed.card), agent_card_pb2.AgentCard()).name == "reasoning-agent-1"


def test_capabilities_alone_are_a_small_card_without_id() -> None:
    parsed = parse_card(CAPABILITIES_ONLY, max_bytes=LIMIT)
    assert parsed.agent_id is None
    assert parsed.strategies == ("bounded_context", "chain_of_thought", "react")


def test_a_small_card_keeps_other_capabilities_and_drops_repetitions() -> None:
    parsed = parse_card('{"id": "a", "capabilities": ["translate", "reasoning.strategy.X", "translate"]}', max_bytes=99)
    assert parsed.capabilities == ("translate", "reasoning.strategy.X")
    assert parsed.strategies == ()
    assert parsed.card["skills"][0]["tags"] == ["translate"]


def test_an_agents_own_parameters_come_from_the_small_card_or_from_our_extension() -> None:
    config = {"bounded_context": {"chunk_size": 4096, "carryover_mode": "tail"}}
    small = json.loads(SMALL_CARD) | {"strategy_config": config}
    extension = {"uri": EXTENSION, "params": {"strategy_config": config, "supported_methods": ["reasoning.execute"]}}
    a2a = a2a_card(capabilities={"extensions": [{"uri": "urn:other"}, extension]})
    for card in (small, a2a):
        parsed = parse_card(json.dumps(card), max_bytes=LIMIT)
        assert parsed.strategy_config == config
        assert parsed.supported_methods == ("reasoning.execute",)


def test_parameters_of_a_strategy_that_is_not_offered_are_refused() -> None:
    card = json.loads(SMALL_CARD) | {"strategy_config": {"react": {}}}
    assert "the card offers bounded_context, chain_of_thought" in violations(json.dumps(card))["card.strategy_config"]
    assert "offers none" in violations('{"capabilities":[],"strategy_config":{"x":{}}}')["card.strategy_config"]


@pytest.mark.parametrize(
    "field",
    [
        "name",
        "description",
        "supportedInterfaces",
        "version",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    ],
)
def test_every_required_field_is_required(field: str) -> None:
    card = a2a_card()
    del card[field]
    assert violations(json.dumps(card)) == {f"card.{field}": "is required"}


@pytest.mark.parametrize(
    ("change", "field", "description"),
    [
        ({"name": ""}, "card.name", "must not be empty"),
        ({"name": 5}, "card.name", "must be a string"),
        ({"name": "x" * 16_385}, "card.name", "must have at most 16384 characters"),
        ({"skills": []}, "card.skills", "must have at least 1 entry"),
        ({"skills": {}}, "card.skills", "must be a list"),
        ({"skills": [5]}, "card.skills[0]", "must be an object"),
        ({"skills": a2a_card()["skills"] * 2}, "card.skills", "must not use one id for two skills"),
        ({"defaultInputModes": ["x"] * 257}, "card.defaultInputModes", "must have at most 256 entries"),
        ({"capabilities": {"streaming": "yes"}}, "card.capabilities.streaming", "must be true or false"),
        ({"capabilities": 1}, "card.capabilities", "must be an object"),
        ({"icon_url": "x"}, "card", "spells 'icon_url', which is 'iconUrl' in the JSON of A2A"),
        ({"[a.b]": 1}, "card", "holds a name in brackets, which stands for a protobuf extension; cards have none"),
        ({"securitySchemes": []}, "card.securitySchemes", "must be an object"),
        (
            {"securitySchemes": {"x": {"mtlsSecurityScheme": {}, "httpAuthSecurityScheme": {"scheme": "b"}}}},
            "card.securitySchemes.x",
            f"must hold exactly one of {', '.join(SCHEMES)}",
        ),
        (
            {"capabilities": {"extensions": [{"uri": EXTENSION, "params": {"strategy_config": []}}]}},
            "card.strategy_config",
            "must be an object",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_would_be_right(change: dict[str, Any], field: str, description: str) -> None:
    assert violations(json.dumps(a2a_card(**change))) == {field: description}


def test_a_wrong_id_of_a_small_card_is_named() -> None:
    assert "must match" in violations('{"id": "a b", "capabilities": []}')["card.id"]


def test_a_card_with_very_many_faults_names_the_first_twenty() -> None:
    card = a2a_card(skills=[{"id": str(index)} for index in range(100)])
    assert len(violations(json.dumps(card))) == 20


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ("5", "must be a JSON object"),
        ('{"a": NaN}', "is not valid JSON"),
        ('{"a": Infinity}', "is not valid JSON"),
        ('{"a": 1e999}', "holds a number beyond the range of a double"),
        ('{"a": -1' + "0" * 400 + "}", "holds a number beyond the range of a double"),
        ('{"a": "\\ud800"}', "is not valid JSON"),
        ('{"a": "\ud800"}', "is not valid JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "holds the key 'c' twice in one object"),
        ('{"a": 1, "\\u0061": 2}', "holds the key 'a' twice in one object"),
        ('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH, f"must not be nested more than {MAX_DEPTH} levels deep"),
        ('{"a":' + "[" * 10_000 + "]" * 10_000 + "}", "is not valid JSON"),
        ("{}" + " " * LIMIT, f"must have at most {LIMIT} bytes"),
        ('"' + "\N{GRINNING FACE}" * (LIMIT // 4) + '"', f"must have at most {LIMIT} bytes"),
    ],
)
def test_what_is_no_json_object_is_refused_before_it_is_a_card(text: str, description: str) -> None:
    found = violations(text)
    assert list(found) == ["card_json"]
    assert re.sub(r" at line \d+ column \d+$", "", found["card_json"]) == description


def test_a_syntax_error_is_located() -> None:
    assert violations('{"a": 1,\n "b" 2}')["card_json"].startswith("is not valid JSON at line 2 column ")


def test_an_error_without_words_of_its_own_is_still_located() -> None:
    error: Any = {"type": "new_in_some_release", "loc": ("skills", 3), "msg": "foreign", "input": "x"}
    assert _to_violation(error) == Violation(field="card.skills[3]", description="is not valid")


def test_strategies_are_read_from_well_formed_capabilities_only() -> None:
    assert list_strategies(["reasoning.strategy.b", "x", "reasoning.strategy.", "reasoning.strategy.A", "b"]) == ("b",)


def own_card(**changes: Any) -> dict[str, Any]:
    arguments = {
        "name": "reasond",
        "version": "0.1.0",
        "grpc_url": "127.0.0.1:50051",
        "jsonrpc_url": "http://127.0.0.1:8001/api/v1/jsonrpc",
        "strategies": {"chain_of_thought": "Thinks once.", "bounded_context": "Reads in windows."},
        "supported_methods": ["reasoning.execute", "reasoning.list_strategies"],
    }
    return build_server_card(**(arguments | changes))


def test_this_servers_card_is_a_valid_a2a_card_that_we_would_accept() -> None:
    card = own_card()
    validate_proto_required_fields(ParseDict(card, SdkAgentCard()))
    parsed = parse_card(encode_card(card), max_bytes=LIMIT)
    assert parsed.strategies == ("bounded_context", "chain_of_thought")
    assert parsed.supported_methods == ("reasoning.execute", "reasoning.list_strategies")


def test_this_servers_card_says_what_seed_000_asks() -> None:
    card = own_card(supported_methods=["executions.get"])
    params = card["capabilities"]["extensions"][0]["params"]
    assert params["supported_methods"] == ["reasoning.execute", "executions.get"]
    assert params["capabilities"] == ["reasoning.strategy.bounded_context", "reasoning.strategy.chain_of_thought"]
    assert [skill["tags"] for skill in card["skills"]] == [
        ["reasoning", "bounded_context"],
        ["reasoning", "chain_of_thought"],
    ]
    assert [interface["protocolBinding"] for interface in card["supportedInterfaces"]] == [
        JSONRPC_BINDING,
        GRPC_BINDING,
    ]


def test_an_interface_that_is_off_is_left_out() -> None:
    interfaces = own_card(jsonrpc_url="")["supportedInterfaces"]
    assert [interface["protocolBinding"] for interface in interfaces] == [GRPC_BINDING]


def test_a_server_without_strategies_still_has_a_valid_card() -> None:
    card = own_card(strategies={})
    validate_proto_required_fields(ParseDict(card, SdkAgentCard()))
    assert list_strategies([skill["id"] for skill in card["skills"]]) == ()


def test_the_card_does_not_depend_on_the_order_of_its_strategies() -> None:
    turned = {"bounded_context": "Reads in windows.", "chain_of_thought": "Thinks once."}
    assert encode_card(own_card()) == encode_card(own_card(strategies=turned))


def test_etags_follow_the_content() -> None:
    assert compute_etag("a") == compute_etag("a") != compute_etag("b")
    assert len(compute_etag("a")) == 32


@pytest.mark.parametrize(
    "url",
    [
        *("javascript:alert(1)", "JavaScript:alert(1)", "vbscript:x", "data:text/html,x", "file:///etc/passwd"),
        *("https://a.example/\r\nSet-Cookie: a", "https://a.example/a b", "https://a.example/\u202egpj"),
        *("\tjavascript:alert(1)", "https://a.example/\x9b31m", "blob:https://a.example/x"),
    ],
)
@pytest.mark.parametrize("place", ["documentationUrl", "iconUrl", "provider", "supportedInterfaces", "extensions"])
def test_an_address_that_would_run_code_or_break_a_line_is_refused(url: str, place: str) -> None:
    values: dict[str, Any] = {
        "provider": {"url": url, "organization": "o"},
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "extensions": {"extensions": [{"uri": url}]},
    }
    changed = {"capabilities" if place == "extensions" else place: values.get(place, url)}
    with pytest.raises(InvalidRequestError, match="is no address"):
        parse_card(json.dumps(a2a_card(**changed)), max_bytes=LIMIT)
