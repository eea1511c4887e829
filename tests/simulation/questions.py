"""The questions of a simulation: for the listed strategy and for the real ones, and the model's replies to them.

The steps of a real strategy are compared with those of one undisturbed run, which is made once without any fault.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from reasond_server.demo import DemoModel
from reasond_server.eventlog.stored.codec import detail_json
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatRequest, Finished, ModelFinish, Role, Text, ToolSpec, WrappedModel
from reasond_server.llm.stop_filter import StopFilter
from reasond_server.runs.plan import make_nonces
from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.bounded_context import BoundedContext
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.chain_of_verification import ChainOfVerification
from reasond_server.strategies.plan_and_solve import PlanAndSolve
from reasond_server.strategies.program_of_thought import ProgramOfThought
from reasond_server.strategies.react import React
from reasond_server.strategies.self_aggregation import SelfAggregation
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.self_refine import SelfRefine
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step
from reasond_server.strategies.tree_of_thought import TreeOfThought
from reasond_server.tools.calculator import CalculatorArguments, calculate
from reasond_server.tools.programs import ProgramResult
from reasond_server.tools.tool import NO_TOOLS
from reasond_server.types import Budget, Task, ToolCall, ToolResult, Usage
from tests.simulation.scripted import Listed, prompts_of, query_of
from tests.simulation.virtual import VirtualLoop

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.llm.model import ModelEvent
    from reasond_server.tools.tool import Toolbox
    from reasond_server.types import FinishReason, StepDetail

CALCULATOR: Final = "calculator"
_TOOL_CALLS: Final = 3
_NONCE: Final = re.compile(r"\b[a-z]{28}\b")
_SUM: Final = "What is (12 * 7 + 5) * 3 - 16 / 4?"
_ABOUT_MATERIAL: Final = "gate 11 of the wall"
_MATERIAL: Final = "\n\n".join(
    f"Gate {number} of the wall was built in {1600 + number} by the mason of street {number * 7}. "
    "The river runs north of it, and the market is held beside it every week."
    for number in range(18)
)
STRATEGIES: Final[Sequence[ReasoningStrategy[Any]]] = (
    Listed(),
    ChainOfThought(),
    BoundedContext(),
    React(),
    TreeOfThought(),
    SelfConsistency(),
    SelfAggregation(),
    PlanAndSolve(),
    BestOfN(),
    SelfRefine(),
    ChainOfVerification(),
    ProgramOfThought(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A task and its strategy; `tag` identifies it in everything that is stored."""

    tag: str
    strategy: str = "listed"
    query: str
    material: str = ""
    config: tuple[tuple[str, object], ...] = ()
    budget: Budget = field(default_factory=Budget)
    has_repeatable_tools: bool = False

    @property
    def is_listed(self) -> bool:
        """Whether the task lists its calls."""
        return self.strategy == "listed"

    @property
    def prompts(self) -> Sequence[str]:
        """The prompts of all calls of a task that lists them."""
        return prompts_of(self.query)

    def task(self) -> Task:
        """Return the task for the service."""
        return Task(
            query=self.query,
            material=self.material,
            strategy=self.strategy,
            config=dict(self.config),
            budget=self.budget,
            # The tag names no strategy, so it does not narrow the choice.
            agent_capabilities=(self.tag,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """An undisturbed run: the number of identical requests, its steps, its result and its cost.

    `replies` maps the marker of a request to the model's replies.
    """

    asked: Mapping[str, int]
    replies: Mapping[str, Sequence[ModelEvent]]
    steps: Sequence[str]
    answer: str
    finish_reason: FinishReason
    usage: Usage
    tool_calls: int


_REAL: Final[Sequence[tuple[str, str, str, tuple[tuple[str, object], ...]]]] = (
    ("chain_of_thought", _SUM, "", ()),
    (
        "bounded_context",
        f"When was {_ABOUT_MATERIAL} built?",
        _MATERIAL,
        (("chunk_size", 1024), ("carryover_size", 512)),
    ),
    ("react", _SUM, "", (("allow_tool_use", True),)),
    ("tree_of_thought", _SUM, "", (("max_depth", 2), ("branching", 2))),
    ("self_consistency", _SUM, "", (("samples", 5),)),
    ("self_consistency", _SUM, "", (("samples", 20), ("confidence", 0.8))),
    ("self_aggregation", _SUM, "", (("chains", 4), ("group", 2), ("rounds", 2))),
    ("plan_and_solve", _SUM, "", ()),
    ("self_refine", _SUM, "", (("max_rounds", 2),)),
    ("best_of_n", _SUM, "", (("samples", 3), ("min_score", 0.5))),
    ("best_of_n", _SUM, "", (("samples", 4), ("judge", "tournament"))),
    ("best_of_n", _SUM, "", (("samples", 3), ("verifier", "program"), ("check_program", "print(1)"))),
    ("chain_of_verification", _SUM, "", ()),
    ("program_of_thought", _SUM, "", (("max_attempts", 3),)),
)


def asked_by_chance(tag: str, chance: random.Random) -> Question:
    """Return a random question, every second one for the listed strategy."""
    if chance.random() < 0.5:
        query = query_of(tag, chance)
        return Question(tag=tag, query=query, budget=_budget(chance.random(), query))
    strategy, query, material, config = chance.choice(_REAL)
    return Question(
        tag=tag,
        strategy=strategy,
        query=query,
        material=material,
        config=config,
        has_repeatable_tools=chance.random() < 0.5,
    )


def _budget(throw: float, query: str) -> Budget:
    """Return no budget, or one that is sometimes too small for the task."""
    if throw < 0.75:
        return Budget()
    calls = sum(step["calls"] for step in json.loads(query)["steps"])
    return Budget(max_model_calls=max(1, calls - 1)) if throw < 0.9 else Budget(max_total_tokens=200)


def marker_of(request: ChatRequest) -> str:
    """Return the text that only the reply to such a request contains; the run's own random marks do not matter."""
    asked = [(str(message.role), message.content, repr(message.tool_calls)) for message in request.messages]
    text = _NONCE.sub("", repr((asked, request.temperature, request.max_tokens, request.tool_choice)))
    return f"reply-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def plain(detail: StepDetail) -> str:
    """Return a step as text that is the same in each run."""
    return _NONCE.sub("", detail_json(detail))


def run_calculator(call: ToolCall) -> ToolResult:
    """Return the calculator's result."""
    expression = CalculatorArguments.model_validate_json(call.arguments_json).expression
    return ToolResult(call_id=call.call_id, result_json=json.dumps({"result": calculate(expression)}))


CALCULATOR_SPEC: Final = ToolSpec(
    name=CALCULATOR, description="Calculates.", parameters=CalculatorArguments.model_json_schema()
)


async def reply_to(request: ChatRequest) -> Sequence[ModelEvent]:
    """Return the model's reply: the reply of the undisturbed run, if that run made the same request."""
    marker = marker_of(request)
    for course in courses().values():
        if marker in course.replies:
            return course.replies[marker]
    return await _reply_to(request)


async def _reply_to(request: ChatRequest) -> Sequence[ModelEvent]:
    """Return the model's reply, which is the same for requests that differ only in the run's own random marks.

    The last event carries the marker of the request as a warning, so that it is found wherever the reply is stored.
    """
    if any(_ABOUT_MATERIAL in message.content for message in request.messages):
        async with aclosing(DemoModel().stream(request)) as events:
            heard = [event async for event in events]
        pieces = "".join(event.text for event in heard if isinstance(event, Text))
        return [Text(text=pieces), *(_mark(event, request) for event in heard if isinstance(event, Finished))]
    chance = int(marker_of(request).removeprefix("reply-"), 16)
    asked, done = request.messages[-1].content, sum(message.role is Role.TOOL for message in request.messages)
    call = None
    if request.tools and request.tool_choice != "none" and done < _TOOL_CALLS:
        arguments = json.dumps({"expression": f"{chance % 97} * {done + 2}"})
        call = ToolCall(call_id=f"c{done}", name=CALCULATOR, arguments_json=arguments)
        text = f"Let me see, {done}."
    elif "different ways" in asked:
        end = f" <answer>{chance % 7}</answer>" if "No step can follow" in asked else ""
        text = "\n".join(f"Thought {number}: try {chance % 89 + number}.{end}" for number in (1, 2))
    elif "Judge the thought" in asked:
        text = f"So so. <answer>{chance % 11}</answer>"
    elif "short questions" in asked:
        text = f"Question 1: Is it {chance % 7}?\nQuestion 2: Is it even?\nQuestion 3: Is it odd?"
    elif "Write one Python program" in asked:
        text = f"```python\nprint({chance % 5})\n```"
    else:
        text = f"Because of {chance % 83}. <answer>{chance % 3}</answer>"
    return _write_reply(request, text, call)


def _write_reply(request: ChatRequest, text: str, call: ToolCall | None) -> list[ModelEvent]:
    stop, counter = StopFilter(request.stop), WordPieceCounter()
    written = stop.feed(text) + stop.flush()
    events: list[ModelEvent] = [Text(text=written[:8]), Text(text=written[8:])]
    if call is not None:
        events.append(call)
    usage = Usage(
        input_tokens=counter.count_prompt(request.messages), output_tokens=counter.count_text(written), model_calls=1
    )
    reason = ModelFinish.STOP if call is None else ModelFinish.TOOL_CALLS
    return [*events, _mark(Finished(reason=reason, usage=usage, matched_stop=stop.matched), request)]


def _mark(finished: Finished, request: ChatRequest) -> Finished:
    return replace(finished, warnings=(marker_of(request),))


class SlowPrograms:
    """Runs programs that print one number: an odd one is an error."""

    is_available = True

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:  # noqa: ARG002 - the port's
        """Return the result after a while, in which the process may be killed."""
        await asyncio.sleep(0.5)
        number = int(source.removeprefix("print(").removesuffix(")"))
        return ProgramResult(output=f"{number}\n", exit_code=number % 2, elapsed_s=0.5)


class _Heard(WrappedModel[DemoModel]):
    """A model that records its requests and replies."""

    def __init__(self) -> None:
        super().__init__(model=DemoModel())
        self.asked = Counter[str]()
        self.replies: dict[str, Sequence[ModelEvent]] = {}

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Reply, and record a reply that was read to its end."""
        marker = marker_of(request)
        self.replies[marker] = await _reply_to(request)
        for event in self.replies[marker]:
            if isinstance(event, Finished):
                self.asked[marker] += 1
            yield event


class _Calculator:
    """The only tool, without any fault."""

    def __init__(self) -> None:
        self.calls = 0

    specs: Sequence[ToolSpec] = (CALCULATOR_SPEC,)

    async def call(self, call: ToolCall) -> ToolResult:
        """Calculate."""
        self.calls += 1
        return run_calculator(call)

    def is_idempotent(self, name: str) -> bool:
        """Return whether a call may be repeated; no call is repeated here."""
        return name == CALCULATOR

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        """Do nothing: no call is restored here."""


@functools.cache
def courses() -> Mapping[tuple[str, tuple[tuple[str, object], ...]], Course]:
    """Return the undisturbed run of each real strategy with its question, by its name and its parameters."""
    return {
        (name, config): VirtualLoop(has_threads=True).run(_course(name, query, material, config))
        for name, query, material, config in _REAL
    }


async def _course(name: str, query: str, material: str, config: tuple[tuple[str, object], ...]) -> Course:
    (strategy,) = (one for one in STRATEGIES if one.name == name)
    model, calculator = _Heard(), _Calculator()
    metered = MeteredModel(model=model, budget=Budget())
    resolved = strategy.config_type.model_validate(dict(config))
    toolbox: Toolbox = calculator if resolved.uses_tools else NO_TOOLS
    context = RunContext(
        config=resolved,
        model=metered,
        tools=toolbox,
        programs=SlowPrograms(),
        monotonic=asyncio.get_running_loop().time,
        new_nonce=make_nonces("n" * 28),
    )
    steps, outcome = list[str](), None
    async with aclosing(strategy.run(Task(query=query, material=material), context)) as events:
        async for event in events:
            if isinstance(event, Step):
                steps.append(plain(event.detail))
            elif isinstance(event, Outcome):
                outcome = event
    assert outcome is not None
    return Course(
        asked=dict(model.asked),
        replies=model.replies,
        steps=steps,
        answer=outcome.answer,
        finish_reason=outcome.finish_reason,
        usage=metered.usage,
        tool_calls=calculator.calls,
    )
