"""ReAct on a real engine, with calls in the provider's own form.

The engine's model sees only its last token, so it makes the same call in every reply, whatever the result was.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.strategies.react import React, ReactConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.tools.execution import Tools
from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext
from reasond_server.types import FinishReason, ReactMetrics, ReactStep, Task
from tests.engines.serving import running_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.serving import Engine

MISSING = [name for name in ("xllamacpp", "gguf", "openai", "aiohttp") if find_spec(name) is None]
IS_CI = os.environ.get("CI") == "true"
pytestmark = pytest.mark.skipif(bool(MISSING) and not IS_CI, reason=f"not installed: {', '.join(MISSING)}")


class Terms(ToolArguments):
    """The terms of the sum."""

    a: Annotated[int, Field(description="The first.")]
    b: Annotated[int, Field(description="The second.")]


class Add(ModelledTool[Terms]):
    """Adds, and counts its calls."""

    name: ClassVar[str] = "add"
    description: ClassVar[str] = "Adds two numbers."
    arguments_type: ClassVar[type[ToolArguments]] = Terms
    calls = 0

    async def call(self, arguments: Terms, context: ToolContext) -> object:  # noqa: ARG002 - the signature of tools
        self.calls += 1
        return {"result": arguments.a + arguments.b}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running_engine("call", folder=tmp_path_factory.mktemp("react"), window=8192) as started:
        yield started


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_calls_of_the_engine_are_made_and_their_results_are_taken(
    engine: Engine, protocol: Literal["chat", "responses"]
) -> None:
    options = BackendOptions(
        name="engine",
        model="any",
        base_url=engine.base_url,
        profile=find_profile("any", "", "llamacpp"),
    )
    add = Add()
    async with aclosing(build_model(replace(options, protocol=protocol))) as model:
        assert model.has_native_tools
        config = ReactConfig(allow_tool_use=True, max_tokens_per_step=120, temperature=0.0)
        context = RunContext(config=config, model=model, tools=Tools(tools=[add]).open_toolbox(max_calls=None))
        events = [event async for event in React().run(Task(query="Six and seven?"), context)]
    steps = [event.detail for event in events if isinstance(event, Step) and isinstance(event.detail, ReactStep)]
    outcome = events[-1]
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.metrics, ReactMetrics)
    made = [(call.name, call.arguments_json.replace(" ", "")) for step in steps for call in step.actions]
    assert made[:3] == [("add", '{"a":6,"b":7}')] * 3
    told = [result.result_json for step in steps for result in step.observations]
    assert told[0] == told[1] == '{"result":13}'
    assert steps[2].observations[0].is_error, "the third time the call is refused"
    assert add.calls == outcome.metrics.tool_calls == 2
    assert outcome.finish_reason is FinishReason.MAX_ITERATIONS
    assert any("third time" in warning for warning in outcome.warnings)
