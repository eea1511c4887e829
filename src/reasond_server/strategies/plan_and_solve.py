"""Plan and solve: one call devises a plan, a second one works out the answer along it."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ModelReply
from reasond_server.context.final_replies import STEPS_FIRST, describe_silence, read_final_reply
from reasond_server.context.stages import Shown, StageCalls, prepare_stages
from reasond_server.context.tags import restore
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Temperature, Wrote
from reasond_server.types import CostClass, FinishReason, PlanAndSolveMetrics, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.strategies.strategy import RunContext, StrategyEvent

PLAN: Final = "plan"
SOLUTION: Final = "solution"

_PLAN: Final = (
    "Write a plan for this, not the solution: a numbered list of as few steps as it takes, each on one line, that says "
    "what the step finds out and from which facts or numbers of the question, for example: 1. Find the price without "
    "tax from the price and the rate. Leave all results and the answer out."
)
_SOLVE: Final = (
    "Solve the question now, with the facts and numbers that it gives. The plan is a help that may be wrong: mend it "
    f"where it is. {STEPS_FIRST}"
)
_STEP_LINE: Final = re.compile(r"^[ \t]{0,8}(?:[*_]{0,2}(?:step )?\d{1,3}[.):]|[-*•] )", re.IGNORECASE | re.MULTILINE)


class PlanAndSolveConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_plan_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=8192, description="Most tokens the model may write for the plan.")
    ] = 1024
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write for the solution.")
    ] = 4096
    temperature: Temperature = 0.7

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return 2


class PlanAndSolve(ReasoningStrategy[PlanAndSolveConfig]):
    """Ask for a plan first, then for the answer along it.

    The paper asks for both in one call. Here they are two, so that the plan is a step that can be read, and neither
    part takes the tokens of the other.

    Cost: 2 calls, or 1 if the budget has no room for both. The first has P + A tokens and the second P + A + G: P for
    the prompt, A <= max_plan_tokens, G <= max_tokens. Memory: both replies. Latency: both calls one after the other.

    Failure modes: a wrong plan misleads the solution, although that is told to mend it. A plan that is empty or
    withheld is left out, with a warning. If the budget does not cover the plan and a solution of the same length, only
    the solution is asked for, and the run ends BUDGET_EXHAUSTED with its answer. If the plan leaves too little of the
    model's window, only its end is shown, with a warning.

    Source: Wang et al. 2023, arXiv 2305.04091.
    """

    name: ClassVar[str] = "plan_and_solve"
    description: ClassVar[str] = (
        "Devises a plan in one model call and carries it out in a second: for questions of several steps, of which "
        "one call leaves some out."
    )
    config_type: ClassVar[type[PlanAndSolveConfig]] = PlanAndSolveConfig
    cost_class: ClassVar[CostClass | None] = CostClass.CONSTANT
    cost_formula: ClassVar[str] = (
        "2 model calls, which write at most max_plan_tokens and max_tokens; 1 where the budget has no room for both"
    )
    is_replayable: ClassVar[bool] = True

    async def run(self, task: Task, context: RunContext[PlanAndSolveConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Plan, then solve; see the base class.

        Raises:
            ContextExhaustedError: question and material leave no room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover a call.
            ModelError: a call failed.
        """
        calls = await prepare_stages(
            task, model=context.model, nonce=context.new_nonce(), instructions=(_PLAN, _SOLVE), shown=1
        )
        run = _Run(config=context.config, calls=calls)
        has_budget = await run.has_budget(task)
        if has_budget:
            async with aclosing(run.plan()) as events:
                async for event in events:
                    yield event
        else:
            run.warnings.append("The budget has no room for a plan and its solution: only the solution was asked for.")
        async with aclosing(run.solve(is_short=not has_budget)) as events:
            async for event in events:
                yield event


@dataclass(slots=True, kw_only=True)
class _Run:
    """The state of one run: its plan, empty without one, and its warnings."""

    config: PlanAndSolveConfig
    calls: StageCalls
    plan_text: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> PlanAndSolveMetrics:
        """The metrics so far."""
        return PlanAndSolveMetrics(is_planned=bool(self.plan_text), plan_steps=len(_STEP_LINE.findall(self.plan_text)))

    async def has_budget(self, task: Task) -> bool:
        """Return whether the budget covers the plan, and after it a solution that is as long as the plan may be."""
        budget, most = task.budget, self.config.max_plan_tokens
        if budget.max_model_calls is not None and budget.max_model_calls < 2:  # noqa: PLR2004 - the plan and the solution
            return False
        if budget.max_total_tokens is None:
            return True
        planning = await self.calls.bound_tokens(_PLAN, more_tokens=most)
        solving = await self.calls.bound_tokens(_SOLVE, more_tokens=most + min(most, self.config.max_tokens))
        return planning + solving <= budget.max_total_tokens

    async def plan(self) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for the plan."""
        prompt = self.calls.fit(_PLAN, max_tokens=self.config.max_plan_tokens)
        call = self.calls.stream(prompt, temperature=self.config.temperature, kinds=())
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        if reply.finish is not ModelFinish.CONTENT_FILTER:
            self.plan_text = reply.parsed.text.strip()
        self.warnings += _describe_plan(reply, self.plan_text)
        yield Step(detail=StageStep(stage=PLAN, text=self.plan_text), answer_found=False, metrics=self.metrics)

    async def solve(self, *, is_short: bool) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for the answer along the plan; `is_short` says that the budget left no room for a plan."""
        shown = [Shown(name=PLAN, text=self.plan_text)] if self.plan_text else []
        prompt = self.calls.fit(_SOLVE if shown else STEPS_FIRST, *shown, max_tokens=self.config.max_tokens)
        async with aclosing(self.calls.stream(prompt, temperature=self.config.temperature)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        final = read_final_reply(reply, is_program=self.calls.is_program)
        detail = StageStep(stage=SOLUTION, text=final.thought, answer=final.answer)
        yield Step(detail=detail, answer_found=final.is_answered, metrics=self.metrics)
        is_cut_short = is_short and final.is_answered
        yield Outcome(
            answer=restore(final.answer),
            finish_reason=FinishReason.BUDGET_EXHAUSTED if is_cut_short else final.finish_reason,
            metrics=self.metrics,
            warnings=(*self.warnings, *describe_silence(reply, final), *self.calls.warnings),
        )


def _describe_plan(reply: ModelReply, plan: str) -> Sequence[str]:
    """Return a warning if the plan is missing or was cut off."""
    if reply.finish is ModelFinish.CONTENT_FILTER:
        return ("The provider withheld the plan; the question was answered without one.",)
    if not plan:
        return ("The model wrote no plan; the question was answered without one.",)
    if reply.finish is ModelFinish.LENGTH:
        return ("The plan was cut off at max_plan_tokens; the solution was shown what there was.",)
    return ()
