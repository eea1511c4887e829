from contextlib import aclosing

from reasond_server.llm.model import ChatModel, ChatRequest, Message, Role, WrappedModel
from reasond_server.testing import ScriptedModel

ASK = ChatRequest(messages=[Message(role=Role.USER, content="question")], max_tokens=50)
MEMBERS = [name for name in vars(ChatModel) if not name.startswith("_")]


def test_a_wrapper_passes_every_property_of_the_port_on() -> None:
    inner = ScriptedModel(["yes"], context_window=77, has_native_tools=True)
    outer = WrappedModel(model=inner)
    properties = [name for name in MEMBERS if isinstance(getattr(ChatModel, name), property)]
    assert len(properties) == 5
    for name in properties:
        assert getattr(outer, name) == getattr(inner, name), name
    # Models may have what is no part of the port, because most take no images, tell no probabilities and have no price.
    assert {*MEMBERS, "image_tokens", "enforces_schema", "most_logprobs", "price"} == {
        name for name in vars(WrappedModel) if not name.startswith("_")
    }


async def test_calls_counts_and_the_end_reach_the_model() -> None:
    inner = ScriptedModel(["yes"])
    outer = WrappedModel(model=inner)
    assert await outer.count_exactly(ASK.messages) == await inner.count_exactly(ASK.messages)
    async with aclosing(outer.stream(ASK)) as events:
        said = [event async for event in events]
    assert inner.requests == [ASK]
    assert said
    await outer.aclose()
