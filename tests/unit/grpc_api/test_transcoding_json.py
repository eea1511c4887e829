"""JSON that the protos do not have is refused with its place and its value, whatever json_format would make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from a2a.types import Part, SendMessageRequest
from google.protobuf import json_format

from reasond.v1 import agent_service_pb2, execution_pb2, reasoning_service_pb2
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.transcoding import find_method, read_message
from tests.rest_calls import RPCS

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

TASK = execution_pb2.ReasoningTask
REQUEST = reasoning_service_pb2.ReasonRequest
PART: Any = Part.DESCRIPTOR
SENDING: Any = SendMessageRequest.DESCRIPTOR
WHOLE = "must be a whole number of 64 bits"
BASE64 = "must be Base64"
DURATION = "must be a duration in seconds such as 1.5s"


def image(data: object) -> dict[str, Any]:
    return {"images": [{"media_type": "image/png", "data": data}]}


def tokens(value: object) -> dict[str, Any]:
    return {"budget": {"max_total_tokens": value}}


def span(value: object) -> dict[str, Any]:
    return {"budget": {"max_elapsed": value}}


def heat(value: object) -> dict[str, Any]:
    return {"chain_of_thought": {"temperature": value}}


@pytest.mark.parametrize(
    ("kind", "given", "field", "words"),
    [
        (TASK, {"budget": []}, "budget", "must be an object, got []"),
        (TASK, {"budget": "1"}, "budget", "must be an object, got '1'"),
        (TASK, {"history": {}}, "history", "must be a list, got {}"),
        (TASK, {"history": [None]}, "history[0]", "must be an object, got None"),
        (TASK, {"history": [{"text": "a"}, {"text": 1}]}, "history[1].text", "must be a string, got 1"),
        (TASK, {"stop": "a"}, "stop", "must be a list, got 'a'"),
        (TASK, {"stop": ["a", ["b"]]}, "stop[1]", "must be a string, got ['b']"),
        (TASK, {"custom": []}, "custom", "must be an object with numbers up to 1.8e308, got []"),
        (TASK, {"custom": {"a": [10**400]}}, "custom", "must be an object with numbers up to 1.8e308, got"),
        (TASK, {"foo-bar": 1}, "'foo-bar'", "is no field of this request; known are"),
        (TASK, {"Failed to parse a field": 1}, "'Failed to parse a field'", "is no field"),
        (TASK, {"strateggy": 1}, "strateggy", "is no field of this request; did you mean 'strategy'?"),
        (TASK, {"chain_of_thought": {}, "react": {}}, "react", "cannot stand beside chain_of_thought"),
        (TASK, {"answerSchemaJson": "", "answer_schema_json": ""}, "answer_schema_json", "beside answerSchemaJson"),
        (TASK, heat("warm"), "chain_of_thought.temperature", "must be a number up to 1.8e308, got 'warm'"),
        (TASK, heat(True), "chain_of_thought.temperature", "must be a number up to 1.8e308, got True"),
        (TASK, heat(10**400), "chain_of_thought.temperature", "must be a number up to 1.8e308, got 1000"),
        (TASK, tokens(1.5), "budget.max_total_tokens", f"{WHOLE}, got 1.5"),
        (TASK, tokens(True), "budget.max_total_tokens", f"{WHOLE}, got True"),
        (TASK, tokens(2**63), "budget.max_total_tokens", f"{WHOLE}, got 9223372036854775808"),
        (TASK, tokens("1_0"), "budget.max_total_tokens", f"{WHOLE}, got '1_0'"),
        (TASK, tokens("٣"), "budget.max_total_tokens", WHOLE),
        (TASK, tokens("9" * 5000), "budget.max_total_tokens", WHOLE),
        (TASK, span("1"), "budget.max_elapsed", f"{DURATION}, got '1'"),
        (TASK, span({"seconds": 1}), "budget.max_elapsed", DURATION),
        (TASK, span("1_0s"), "budget.max_elapsed", DURATION),
        (TASK, image("!!!"), "images[0].data", f"{BASE64}, got '!!!'"),
        (TASK, image("é"), "images[0].data", BASE64),
        (TASK, image("a"), "images[0].data", BASE64),
        (TASK, image(1), "images[0].data", BASE64),
        (REQUEST, {"trace_view": "FULL"}, "trace_view", "must be one of TRACE_VIEW_UNSPECIFIED, "),
        (REQUEST, {"trace_view": 1.5}, "trace_view", "must be one of"),
        (REQUEST, {"trace_view": True}, "trace_view", "must be one of"),
        (
            reasoning_service_pb2.ReasonIterationsRequest,
            {"keep_running": 1},
            "keep_running",
            "must be true or false, got 1",
        ),
        (
            agent_service_pb2.RegisterAgentRequest,
            {"card": {"securitySchemes": {"a": 1}}},
            "card.securitySchemes['a']",
            "must be an object, got 1",
        ),
        (
            agent_service_pb2.RegisterAgentRequest,
            {"card": {"securitySchemes": []}},
            "card.securitySchemes",
            "an object",
        ),
    ],
)
def test_other_json_is_refused(kind: type[Message], given: dict[str, Any], field: str, words: str) -> None:
    descriptor: Any = kind.DESCRIPTOR
    with pytest.raises(InvalidRequestError) as refused:
        read_message(descriptor, given)
    (violation,) = refused.value.violations
    assert violation.field == field
    assert words in violation.description


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (heat("0.5"), heat(0.5)),
        (heat("-Infinity"), heat("-Infinity")),
        (tokens("9223372036854775807"), tokens(2**63 - 1)),
        (tokens("1e3"), tokens(1000)),
        (tokens("1.5e1"), tokens(15)),
        (tokens(5.0), tokens(5)),
        (span("-1.5s"), span("-1.500s")),
        (image("aG-_"), image("aG+/")),
        (image("aGk"), image("aGk=")),
        ({"custom": {"a": [1, None, {"b": True}], "c": "d"}}, {"custom": {"a": [1, None, {"b": True}], "c": "d"}}),
        ({"query": None, "chain_of_thought": None, "react": {}}, {"react": {}}),
        ({"answerSchemaJson": "{}"}, {"answer_schema_json": "{}"}),
        ({"history": [{"role": 1}]}, {"history": [{"role": "SPEAKER_USER"}]}),
    ],
)
def test_all_spellings_of_the_protos_are_taken(given: dict[str, Any], read: dict[str, Any]) -> None:
    assert read_message(TASK.DESCRIPTOR, given) == json_format.ParseDict(read, TASK())


def test_maps_are_read() -> None:
    scheme = {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "u", "scopes": {"a": "b"}}}}}
    given = {"agent_id": "a", "card": {"securitySchemes": {"x": scheme}}}
    kind = agent_service_pb2.RegisterAgentRequest
    assert read_message(kind.DESCRIPTOR, given) == json_format.ParseDict(given, kind())


def test_every_field_of_every_request_is_checked() -> None:
    seen: set[str] = set()

    def visit(kind: Descriptor) -> None:
        seen.add(kind.full_name)
        for field in kind.fields:
            part = field.message_type
            if part is None or part.full_name.startswith("google."):
                # A number is right nowhere where an object is, and no type is without its rule.
                value = {"?": 1} if part is None else 1
                given = [value] if field.default_value == [] else value
                with pytest.raises(InvalidRequestError, match="must be"):
                    read_message(kind, {field.name: given})
            elif part.full_name not in seen:
                visit(part)

    for path in RPCS.values():
        visit(find_method(path).input_type)
    assert len(seen) > len(RPCS)


@pytest.mark.parametrize("given", [None, 1, 0.5, "a", True, [1, None, {"a": []}], {"a": {"b": [None, {}]}}, {}, []])
def test_a_field_of_any_json_takes_any_json(given: Any) -> None:
    assert read_message(PART, {"data": given}) == json_format.ParseDict({"data": given}, Part())


def test_a_number_that_no_float_holds_is_refused_in_a_field_of_any_json() -> None:
    with pytest.raises(InvalidRequestError, match=r"parts\[0\].data must be a JSON value with numbers"):
        read_message(SENDING, {"message": {"parts": [{"data": [10**400]}]}})


def test_fields_that_are_not_known_are_left_out_at_all_levels_where_that_is_asked() -> None:
    given = {"message": {"messageId": "m", "parts": [{"text": "a", "later": 1}], "later": {}}, "later": [1]}
    known = {"message": {"messageId": "m", "parts": [{"text": "a"}]}}
    with pytest.raises(InvalidRequestError, match="later"):
        read_message(SENDING, given)
    read = read_message(SENDING, given, ignores_unknown=True)
    assert read == json_format.ParseDict(known, SendMessageRequest())
