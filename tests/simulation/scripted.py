"""The strategy of the simulation: it makes the calls that its task lists, with unique prompts."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final

from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig, Wrote
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, Task, ToolCall

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import StrategyEvent


_PROMPT: Final = re.compile(r"q\d+/\d+/\d+")


class Config(StrategyConfig):
    """No settings; every run may call tools."""

    @property
    def uses_tools(self) -> bool:
        return True


def query_of(tag: str, chance: random.Random) -> str:
    """Return a task: for each step the number of concurrent calls, and the tool, if any."""
    steps = [
        {"calls": chance.choice((1, 1, 1, 2, 3, 0)), "tool": chance.choice(("", "", "transfer", "look_up"))}
        for _ in range(chance.randint(1, 6))
    ]
    return json.dumps({"tag": tag, "steps": steps})


def is_of_list(prompt: str) -> bool:
    """Return whether the prompt comes from a task of this strategy."""
    return _PROMPT.fullmatch(prompt) is not None


def prompts_of(query: str) -> list[str]:
    """Return the prompts of all calls of a task, in the order of their starts."""
    task = json.loads(query)
    return [
        f"{task['tag']}/{number}/{call}" for number, step in enumerate(task["steps"]) for call in range(step["calls"])
    ]


class Listed(ReasoningStrategy[Config]):
    """Makes the calls of its task; the same replies always lead to the same steps."""

    name = "listed"
    description = "Makes the calls that its task lists."
    config_type = Config
    is_replayable = True

    async def run(self, task: Task, context: RunContext[Config]) -> AsyncGenerator[StrategyEvent, None]:
        """Take the steps."""
        listed = json.loads(task.query)
        nonce = context.new_nonce()
        for number, step in enumerate(listed["steps"]):
            prompts = [f"{listed['tag']}/{number}/{call}" for call in range(step["calls"])]
            replies = list(await asyncio.gather(*(_reply(context, prompt) for prompt in prompts)))
            for reply in replies:
                yield Wrote(text=reply)
            if step["tool"]:
                arguments = json.dumps({"of": f"{listed['tag']}/{number}"})
                result = await context.tools.call(
                    ToolCall(call_id=f"t{number}", name=step["tool"], arguments_json=arguments)
                )
                replies.append(result.result_json)
            yield Step(
                detail=CustomStep(data={"replies": replies, "nonce": nonce}),
                answer_found=number == len(listed["steps"]) - 1,
                metrics=CustomMetrics(data={"steps": number + 1}),
            )
        metrics = CustomMetrics(data={"steps": len(listed["steps"])})
        yield Outcome(answer=listed["tag"], finish_reason=FinishReason.ANSWERED, metrics=metrics)


async def _reply(context: RunContext[Config], prompt: str) -> str:
    request = ChatRequest(messages=[Message(role=Role.USER, content=prompt)], max_tokens=64)
    return "".join([event.text async for event in context.model.stream(request) if isinstance(event, Text)])
