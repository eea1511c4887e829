"""Agent cards: parses the cards of other agents and builds this server's. A card is a JSON object with A2A's names."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json

from reasond_server.agents.schema import AgentCard, ReasoningParams, SmallCard
from reasond_server.base.plugins import PLUGIN_NAME
from reasond_server.base.violations import describe_finding
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

    from reasond_server.types import Json

EXTENSION = "urn:reasond:reasoning:v1"
JSONRPC_BINDING = "urn:reasond:jsonrpc:v1"
GRPC_BINDING = "urn:reasond:grpc:v1"
EXECUTE_METHOD = "reasoning.execute"
MAX_DEPTH = 16

_A2A_VERSION = "1.0"
_TEXT_PLAIN = "text/plain"
_PREFIX = "reasoning.strategy."
_SHOWN_VIOLATIONS = 20


@value
class ParsedCard:
    """A valid card.

    `card` is an A2A card, `card_json` the given text, byte for byte. Only small cards set `agent_id`. `strategies` are
    in the agent's order of preference; `strategy_config` holds the agent's own parameters by strategy, unchecked.
    """

    card: Json
    card_json: str
    agent_id: str | None
    capabilities: Sequence[str]
    strategies: Sequence[str]
    supported_methods: Sequence[str]
    strategy_config: Mapping[str, Json]


def parse_card(text: str, *, max_bytes: int) -> ParsedCard:
    """Parse an A2A 1.0 card or a small card of seed 000, which is recognised by its list of capabilities.

    A duplicate key in an object is refused, because some parsers take the first one and others the last.

    Raises:
        InvalidRequestError: `text` is too large, not JSON or not a card; the violations name the fields.
    """
    data = _parse_json(text, max_bytes)
    try:
        if isinstance(data.get("capabilities"), list):
            small = SmallCard.model_validate(data)
            card, agent_id, params = _upgrade_card(small), small.id, ReasoningParams.model_validate(data)
            capabilities = tuple(dict.fromkeys(small.capabilities))
        else:
            known = AgentCard.model_validate(data)
            card, agent_id, params = data, None, _read_extension(known)
            capabilities = tuple(skill.id for skill in known.skills)
    except ValidationError as error:
        raise InvalidRequestError.of(*map(_to_violation, error.errors()[:_SHOWN_VIOLATIONS])) from None
    strategies = list_strategies(capabilities)
    _check_config(params.strategy_config, strategies)
    return ParsedCard(
        card=card,
        card_json=text,
        agent_id=agent_id,
        capabilities=capabilities,
        strategies=strategies,
        supported_methods=tuple(params.supported_methods),
        strategy_config=params.strategy_config,
    )


def list_strategies(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Return the strategies that `capabilities` name as `reasoning.strategy.{name}`, in the same order."""
    names = (capability.removeprefix(_PREFIX) for capability in capabilities if capability.startswith(_PREFIX))
    return tuple(name for name in names if PLUGIN_NAME.fullmatch(name))


def build_server_card(
    *,
    name: str,
    version: str,
    grpc_url: str,
    jsonrpc_url: str,
    strategies: Mapping[str, str],
    supported_methods: Sequence[str],
) -> dict[str, Any]:
    """Build this server's card; `strategies` maps names to descriptions; an empty address omits its interface.

    Equal arguments give equal cards. A2A requires at least one skill: without strategies, the skill is to list them.
    """
    skills = [_build_strategy_skill(strategy, strategies[strategy]) for strategy in sorted(strategies)]
    methods = list(dict.fromkeys((EXECUTE_METHOD, *supported_methods)))
    interfaces = [_build_interface(jsonrpc_url, JSONRPC_BINDING), _build_interface(grpc_url, GRPC_BINDING)]
    params = {
        "supported_methods": methods,
        "capabilities": [f"{_PREFIX}{strategy}" for strategy in sorted(strategies)],
    }
    return {
        "name": name,
        "description": "Works questions out with reasoning strategies over a language model, each step streamed.",
        "supportedInterfaces": [interface for interface in interfaces if interface["url"]],
        "version": version,
        "capabilities": {"streaming": True, "pushNotifications": False, "extensions": [_build_extension(params)]},
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": _build_bearer_scheme()}},
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
        "defaultInputModes": [_TEXT_PLAIN],
        "defaultOutputModes": [_TEXT_PLAIN],
        "skills": skills or [_build_listing_skill()],
    }


def encode_card(card: Json) -> str:
    """Return `card` as compact JSON; the order of its keys is kept."""
    return json.dumps(card, ensure_ascii=False, separators=(",", ":"))


def compute_etag(card_json: str) -> str:
    """Return a tag of 32 hexadecimal digits that changes with `card_json`; HTTP puts it in quotes."""
    return hashlib.sha256(card_json.encode()).hexdigest()[:32]


def _parse_json(text: str, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in `text`."""
    # If the characters alone exceed the limit, the text need not be encoded.
    if len(text) > max_bytes or len(text.encode(errors="replace")) > max_bytes:
        raise _build_json_error(f"must have at most {max_bytes} bytes")
    try:
        # The first parser is strict and bounded in depth. The second is neither, so it gets only accepted text; it
        # finds duplicate keys. It keeps numbers as text, because a long number takes long to parse.
        data = from_json(text.encode(), allow_inf_nan=False)
        json.loads(text, object_pairs_hook=_refuse_duplicates, parse_int=str, parse_float=str)
    except _DuplicateKeyError as error:
        raise _build_json_error(f"holds the key {error.key} twice in one object") from None
    except ValueError as error:
        place = re.search(r"at line \d+ column \d+$", str(error))
        raise _build_json_error(f"is not valid JSON{f' {place[0]}' if place else ''}") from None
    if not isinstance(data, dict):
        raise _build_json_error("must be a JSON object")
    _check_values(data)
    return data


class _DuplicateKeyError(Exception):
    """An object has a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = show(key)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that has a key twice."""
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise _DuplicateKeyError(key)
        keys.add(key)


def _check_values(data: object) -> None:
    """Refuse nesting that other protobuf readers refuse, and numbers that a double cannot represent."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        if any(isinstance(value, int | float) and not abs(value) <= sys.float_info.max for value in level):
            raise _build_json_error("holds a number beyond the range of a double")
        level = [inner for value in level for inner in _list_inner(value)]
    if level:
        raise _build_json_error(f"must not be nested more than {MAX_DEPTH} levels deep")


def _list_inner(value: object) -> Sequence[Any]:
    """Return the values in an object or a list."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _build_json_error(description: str) -> InvalidRequestError:
    """Return the error for a text that is not a card."""
    return InvalidRequestError.of(Violation(field="card_json", description=description))


def _to_violation(error: ErrorDetails) -> Violation:
    """Convert an error of Pydantic to a `Violation`."""
    path = "card"
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return Violation(field=path[:256], description=describe_finding(error))


def _read_extension(card: AgentCard) -> ReasoningParams:
    """Return the parameters that `card` declares under the reasoning extension."""
    for extension in card.capabilities.extensions or ():
        if extension.uri == EXTENSION and extension.params:
            return ReasoningParams.model_validate(extension.params)
    return ReasoningParams()


def _check_config(config: Mapping[str, Json], strategies: Sequence[str]) -> None:
    """Refuse parameters for strategies that the agent does not offer."""
    extra = sorted(config.keys() - set(strategies))
    if extra:
        offered = ", ".join(strategies) or "none"
        description = f"sets parameters of {show(extra[0])}, but the card offers {offered[:200]}"
        raise InvalidRequestError.of(Violation(field="card.strategy_config", description=description))


def _upgrade_card(small: SmallCard) -> dict[str, Any]:
    """Convert `small` to an A2A card without an interface, because a small card has no address."""
    params = {"supported_methods": small.supported_methods, "strategy_config": small.strategy_config}
    return {
        "name": small.name or small.id or "agent",
        "description": small.description or "Registered with a card of capabilities only.",
        "supportedInterfaces": [],
        "version": small.version or "0",
        "capabilities": {"extensions": [{"uri": EXTENSION, "params": params}]},
        "defaultInputModes": [_TEXT_PLAIN],
        "defaultOutputModes": [_TEXT_PLAIN],
        "skills": [_build_skill(capability) for capability in dict.fromkeys(small.capabilities)],
    }


def _build_skill(capability: str) -> dict[str, Any]:
    """Return `capability` of a small card as a skill."""
    for strategy in list_strategies([capability]):
        return _build_strategy_skill(strategy, f"Reasons with the strategy {strategy}.")
    return {"id": capability, "name": capability, "description": capability, "tags": [capability]}


def _build_strategy_skill(strategy: str, description: str) -> dict[str, Any]:
    """Return `strategy` as a skill."""
    return {
        "id": f"{_PREFIX}{strategy}",
        "name": strategy,
        "description": description,
        "tags": ["reasoning", strategy],
    }


def _build_listing_skill() -> dict[str, Any]:
    """Return the skill of a server without strategies."""
    return {
        "id": "reasoning.list_strategies",
        "name": "list_strategies",
        "description": "Lists the strategies that are enabled here; at present there are none.",
        "tags": ["reasoning"],
    }


def _build_interface(url: str, binding: str) -> dict[str, str]:
    """Return an interface with a custom protocol binding (A2A 5.8)."""
    return {"url": url, "protocolBinding": binding, "protocolVersion": _A2A_VERSION}


def _build_extension(params: Json) -> dict[str, Any]:
    """Return the reasoning extension with `params`."""
    return {
        "uri": EXTENSION,
        "description": "Reasoning strategies and the methods to call them.",
        "required": False,
        "params": params,
    }


def _build_bearer_scheme() -> dict[str, str]:
    """Return the security scheme by which callers authenticate: a bearer token."""
    return {
        "description": "A JSON Web Token, or an API key, with the permission reasoning:execute.",
        "scheme": "Bearer",
        "bearerFormat": "JWT",
    }
