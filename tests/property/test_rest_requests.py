"""Whatever a body or a query holds, an RPC gets its request or the caller a refusal in our words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.transcoding import find_method, nest_query, read_message
from tests.rest_calls import RPCS

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

TEXTS = st.sampled_from(
    [
        "",
        "x",
        "1",
        "-1s",
        "99999999999999999999s",
        "NaN",
        "9999-12-31T23:59:60Z",
        "AAAA",
        "true",
        "1e3",
        "1_0",
        "٣",
        "0.5s",
    ]
)
NUMBERS = st.sampled_from([0, -1, 1.5, 1e308, 2**31, 2**63, 10**40, 10**400])
KINDS = {rpc: find_method(path).input_type for rpc, path in RPCS.items()}
NAMES = sorted(
    {field.name for kind in KINDS.values() for field in kind.fields}
    | {"query", "offset", "custom", "card", "budget", "chain_of_thought", "@type"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner),
    max_leaves=8,
)
PATHS = st.lists(st.sampled_from([*NAMES, "DESCRIPTOR", "__class__", "FromString", ""]), min_size=1, max_size=3)


def read(kind: Descriptor, query: list[tuple[str, str]], body: dict[str, Any]) -> None:
    """Read a request; what is taken is what the library of protobuf reads, or a refusal in our words comes of it."""
    try:
        fields = {**nest_query(kind, query), **body}
        found, wanted = read_message(kind, fields), json_format.ParseDict(fields, GetMessageClass(kind)())
        assert found.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)
    except InvalidRequestError as error:
        words = [
            each.description.startswith(("is no", "must be", "cannot stand", "stands in")) for each in error.violations
        ]
        assert words == [True]


@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_any_body_is_a_request_or_a_refusal(rpc: str, body: dict[str, Any]) -> None:
    read(KINDS[rpc], [], json.loads(json.dumps(body)))


@given(st.sampled_from(sorted(KINDS)), st.lists(st.tuples(PATHS, TEXTS), max_size=4))
def test_any_query_is_a_request_or_a_refusal(rpc: str, query: list[tuple[list[str], str]]) -> None:
    read(KINDS[rpc], [(".".join(path), text) for path, text in query], {})
