"""Whatever a body of a chat holds, it becomes a task or is refused in our own words."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.assembly.core import assemble
from reasond_server.config import Settings
from reasond_server.errors.base import ReasondError
from reasond_server.http_api.params import read_params
from reasond_server.protocols.chat.chat_params import ChatParams, read_chat
from reasond_server.protocols.model_catalogue import ModelCatalogue
from reasond_server.protocols.wire_errors import describe_error
from reasond_server.requests.task_checks import check_task
from reasond_server.testing import FunctionModel
from reasond_server.types import Task
from reasond_server.types.turns import TurnReentry

ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "robot"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5) | ANYTHING}), max_size=3)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": st.text(max_size=5) | PARTS | ANYTHING},
        optional=dict.fromkeys(("name", "tool_calls", "refusal", "reasoning", "x"), ANYTHING),
    ),
    max_size=5,
)
BODIES = st.fixed_dictionaries(
    {"model": st.sampled_from(["reasond", "reasond/react", "other"]) | ANYTHING, "messages": MESSAGES | ANYTHING},
    optional={name: ANYTHING for name in ChatParams.model_fields if name not in {"model", "messages"}},
)


@cache
def catalogue() -> ModelCatalogue:
    service = assemble(Settings(), model=FunctionModel(lambda _: "42")).reasoning
    return ModelCatalogue(strategies=service.strategies())


@given(body=BODIES | st.dictionaries(st.text(max_size=10), ANYTHING, max_size=5))
def test_a_body_becomes_a_task_or_is_refused(body: dict[str, Any]) -> None:
    try:
        asked = read_chat(read_params(ChatParams, body), catalogue())
        source = asked.instead or asked.source
        if isinstance(source, Task):
            check_task(source, request_id=asked.request_id)
    except ReasondError as error:
        found = describe_error(error, "call-1")
        assert found["status"] in {400, 404}
        assert len(found["body"]) < 20_000
    else:
        assert not isinstance(source, TurnReentry)
        assert (source.query if isinstance(source, Task) else source.message).strip()
