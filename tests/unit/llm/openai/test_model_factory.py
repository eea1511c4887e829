from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engines.serving import Engine

HELLO = [Message(role=Role.USER, content="Hello.")]


def options(base_url: str = "http://127.0.0.1:1/v1", profile: str = "llamacpp", **more: str) -> BackendOptions:
    return BackendOptions(
        name="llm",
        model=more.get("model", "m"),
        base_url=base_url,
        profile=find_profile("m", base_url, profile),
        protocol="responses" if more.get("protocol") == "responses" else "chat",
    )


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_a_built_model_answers_and_counts_at_a_real_engine(
    llama_server: Callable[..., Engine], protocol: str
) -> None:
    model = build_model(options(llama_server("answer").base_url, protocol=protocol), counter_kind="server")
    try:
        async with aclosing(model.stream(ChatRequest(messages=HELLO, max_tokens=64, temperature=0.0))) as stream:
            events = [event async for event in stream]
        assert "<answer>42" in "".join(event.text for event in events if isinstance(event, Text))
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert finished.reason is ModelFinish.STOP
        if protocol == "chat":
            assert await model.count_exactly(HELLO) == finished.usage.input_tokens
    finally:
        await model.aclose()


@pytest.mark.parametrize("kind", ["estimate", "bytes"])
async def test_a_count_of_ones_own_asks_no_server(kind: str) -> None:
    model = build_model(options(), counter_kind="bytes" if kind == "bytes" else "estimate")
    try:
        assert isinstance(model.counter, ByteCounter if kind == "bytes" else EstimatingCounter)
        assert await model.count_exactly(HELLO) is None
    finally:
        await model.aclose()


async def test_without_anything_at_hand_auto_estimates() -> None:
    model = build_model(options(profile="generic"))
    try:
        assert isinstance(model.counter, EstimatingCounter)
        assert await model.count_exactly(HELLO) is None
    finally:
        await model.aclose()


@pytest.mark.parametrize(
    ("model", "command"),
    [
        ("gpt-4o", "reasond tokenizer fetch o200k_base`"),
        ("gpt-4", "reasond tokenizer fetch cl100k_base`"),
        ("qwen3-8b", "tokenizer_file to the model's tokenizer.json (`pip install 'reasond-server[tokenizers]'`)"),
    ],
)
def test_that_tokens_will_be_estimated_is_told_once_with_the_command_that_ends_it(
    model: str, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    build_model(options(profile="generic", model=model))
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith(f"tokens of '{model}' are estimated")
    assert command in line
    caplog.clear()
    build_model(options(profile="generic", model=model), counter_kind="estimate")
    build_model(options(profile="llamacpp", model=model))
    assert not caplog.records


def test_a_way_of_counting_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs tokenizer_file"):
        build_model(options(), counter_kind="tokenizer")
    with pytest.raises(SettingsError, match="profile 'generic' knows no place"):
        build_model(options(profile="generic"), counter_kind="server")
    with pytest.raises(SettingsError) as caught:
        build_model(options(model="gpt-4o"), counter_kind="tiktoken", rank_folders=[tmp_path])
    assert "no ranks of 'gpt-4o'" in caught.value.message
    assert "`reasond tokenizer fetch o200k_base`" in caught.value.remedy
    assert str(tmp_path) in caught.value.remedy
