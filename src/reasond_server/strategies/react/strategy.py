"""The strategy: what it is, and the run from cycle to cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reasond_server.context.tags import TagKind
from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.strategies.react.config import ReactConfig
from reasond_server.strategies.react.offering import Offers
from reasond_server.strategies.react.run import started
from reasond_server.strategies.strategy import ReasoningStrategy, Wrote
from reasond_server.types import CostClass, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.context.replies import Fragment
    from reasond_server.strategies.strategy import Outcome, RunContext, StrategyEvent
    from reasond_server.types import Task


class React(ReasoningStrategy[ReactConfig]):
    """Cycles of one model call each; the calls of tools in its reply are made one after the other before the next.

    A model that takes tools natively calls them so, any number in one reply. Others write `<action>` in their text
    (`react.prompts`): one call, at which the reply is closed. Observations come from the tools alone: what a
    model writes as one is cut off, and it is asked again. Replies that break the protocol are answered with a
    correction, twice in a run. The same call with the same arguments is made twice; the third time it is refused and
    the run must answer. The last cycle, and the first that finds no tool call or budget left, offers no calls and is
    told to answer.

    Cost: at most `max_iterations` model calls and `max_tool_calls` tool calls. The prompt of call i holds the question,
    the thoughts before it (G <= max_tokens_per_step each) and observations under a share of the window
    (`react.transcript`): P_i <= q + (i - 1) * G + min(8192, W/3), and never more than the window W less what
    may be written, so that the input of a run is at most max_iterations * W. Memory: the conversation, and results of
    tools up to [tools] max_kept_bytes. Latency: that of the calls and of the tools, one after the other.

    Failure modes: a model that cannot keep to the protocol uses its cycles up and is made to answer (the warnings say
    so); what a tool says is believed, so that a hostile or wrong tool gives wrong answers; with `allow_tool_use` off
    it is a chain of thought in several calls. A prompt that leaves the window fewer than 100 tokens, whatever is left
    out, fails with CONTEXT_EXHAUSTED and keeps its steps.

    Source: seed 001 (parameters, metrics, trace); Yao et al. 2022, arXiv 2210.03629; masking: arXiv 2508.21433.
    """

    name: ClassVar[str] = "react"
    description: ClassVar[str] = (
        "Thinks, calls tools and reads what they return, in turns: for questions that need calculations or facts from "
        "elsewhere."
    )
    config_type: ClassVar[type[ReactConfig]] = ReactConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = "at most max_iterations model calls and max_tool_calls tool calls"
    is_replayable: ClassVar[bool] = True

    def __init__(self) -> None:
        self._offers = Offers()

    async def run(self, task: Task, context: RunContext[ReactConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Go through the cycles; see the base class.

        Raises:
            ContextExhaustedError: the conversation does not fit the model's window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
        """
        model, run = context.model, await started(task, context, self._offers)
        outcome: Outcome | None = None
        while outcome is None:
            hearing = await run.call()
            events = model.stream(hearing.request)
            try:
                async for event in events:
                    for text in _shown(hearing.take(event)):
                        yield Wrote(text=text)
                    if hearing.is_done:
                        break
            except TokenBudgetExhaustedError as error:
                if not run.cycles:
                    raise
                yield run.ended(run.best, FinishReason.BUDGET_EXHAUSTED, error.full_message)
                return
            finally:
                await events.aclose()
            rest, reply = hearing.close(model.counter)
            for text in _shown(rest):
                yield Wrote(text=text)
            step, outcome = await run.cycle(reply)
            yield step
        yield outcome


def _shown(fragments: Sequence[Fragment]) -> Sequence[str]:
    """Return what the caller may see as it is written, which calls are not; what comes of one event in one text."""
    texts = [one.text for one in fragments if one.kind is not TagKind.ACTION]
    return ("".join(texts),) if texts else ()
