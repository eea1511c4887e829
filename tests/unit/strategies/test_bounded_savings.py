"""The savings that bounded context reports, compared with one pass counted by the model, for every counter."""

from __future__ import annotations

from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Final

import pytest

from reasond_server.context.sections import SYSTEM, build_prompt
from reasond_server.errors.model import ModelFailedError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import BoundedContextMetrics, Budget, FinishReason, Task, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ChatRequest, TokenCounter

    Replier = Callable[[ChatRequest], str | Reply]

NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"
QUESTION: Final = "What is the only remedy for the confusion caused by the tremors of the air?"
BOOK: Final = resources.files("reasond_server").joinpath("demo/data/opticks.txt").read_text("utf-8")
TEXTS: Final = {
    "prose": BOOK[:30_000],
    "russian": "Стена имеет четверо ворот, и река течёт к северу от неё.\n\n" * 150,
    "table": "".join(f"{row}\t{row * 7919 % 10007}\t{row * 31 % 97}.{row % 10}\n" for row in range(700)),
}
COUNTERS: Final[dict[str, Callable[[], TokenCounter]]] = {
    "exact": WordPieceCounter,
    "estimate": EstimatingCounter,
    "bytes": ByteCounter,
}
ANSWER: Final = "So it is: <answer>A serene air.</answer>"
NOTES: Final = "<continue>Key Findings: the air trembles, and the telescope stands on a mountain.</continue>"


class Backend(FunctionModel):
    """A model that reports its own count plus `hidden` tokens for each prompt; its users see only `counter`."""

    def __init__(self, replier: Replier, *, counter: TokenCounter, hidden: int = 0) -> None:
        super().__init__(replier, counter=WordPieceCounter())
        self._told = counter
        self._hidden = hidden
        self.usages: list[Usage] = []

    @property
    def counter(self) -> TokenCounter:
        """The counter that users of the model see."""
        return self._told

    def _count_usage(self, request: ChatRequest, output_tokens: int, reasoning_tokens: int) -> Usage:
        prompt = self._hidden + self._counter.count_prompt(request.messages)
        usage = Usage(
            input_tokens=prompt, output_tokens=output_tokens, reasoning_tokens=reasoning_tokens, model_calls=1
        )
        self.usages.append(usage)
        return usage

    @property
    def read(self) -> str:
        """The text of the passages that the model answered."""
        users = [request.messages[-1].content for request in self.requests[: len(self.usages)]]
        return "".join(
            user.partition("<passage ")[2].partition(">\n")[2].rpartition("\n</passage")[0] for user in users
        )

    def find_truth(self) -> tuple[float, float]:
        """Return its attention and its tokens, each divided by those of one pass over the text that it read."""
        system, user = (message.content for message in self.requests[0].messages)
        rules, asked = system.removeprefix(SYSTEM), user.rpartition(">\n")[2]
        prompt = build_prompt(instructions=asked, rules=rules, question=QUESTION, nonce=NONCE, material=self.read)
        spent = [usage.total_tokens for usage in self.usages]
        one_pass = self._hidden + self._counter.count_prompt(prompt) + sum(usage.output_tokens for usage in self.usages)
        return sum(each * (each + 1) for each in spent) / (one_pass * (one_pass + 1)), sum(spent) / one_pass


def answer_after_reading(request: ChatRequest) -> str:
    """Take notes while reading, think in one more window, then answer."""
    return ANSWER if "This is the last window" in request.messages[-1].content else NOTES


def answer_at_the_end_of_reading(request: ChatRequest) -> str:
    return ANSWER if "its last passage" in request.messages[-1].content else NOTES


async def run(
    model: Backend, *, material: str, budget: Budget | None = None, chunk_size: int = 2048
) -> tuple[BoundedContextMetrics, FinishReason | None]:
    """Return the last metrics and the finish reason, which is None if the run failed."""
    config = BoundedContextConfig(chunk_size=chunk_size, carryover_size=512, max_iterations=2)
    metered = MeteredModel(model=model, budget=budget or Budget())
    context = RunContext(config=config, model=metered, monotonic=lambda: 0.0, new_nonce=lambda: NONCE)
    found, reason = None, None
    with suppress(ModelFailedError):
        async for event in BoundedContext().run(Task(query=QUESTION, material=material), context):
            found = event.metrics if isinstance(event, Step | Outcome) else found
            reason = event.finish_reason if isinstance(event, Outcome) else None
    assert isinstance(found, BoundedContextMetrics)
    return found, reason


def ratios_of(metrics: BoundedContextMetrics) -> tuple[float, float]:
    """Return attention and tokens as the metrics report them, each divided by those of one pass."""
    savings = metrics.savings
    assert savings is not None
    return 1 - savings.attention_pct / 100, 1 - savings.tokens_pct / 100


@pytest.mark.parametrize("replier", [answer_after_reading, answer_at_the_end_of_reading])
@pytest.mark.parametrize("hidden", [0, 100])
@pytest.mark.parametrize("text", sorted(TEXTS))
@pytest.mark.parametrize("counter", sorted(COUNTERS))
async def test_no_counter_makes_the_tokens_that_are_billed_fewer_than_one_pass_takes(
    counter: str, text: str, hidden: int, replier: Replier
) -> None:
    model = Backend(replier, counter=COUNTERS[counter](), hidden=hidden)
    metrics, reason = await run(model, material=TEXTS[text])
    assert reason is FinishReason.ANSWERED
    assert model.read == TEXTS[text]
    assert min(model.find_truth()[1], ratios_of(metrics)[1]) > 1


@pytest.mark.parametrize("replier", [answer_after_reading, answer_at_the_end_of_reading])
@pytest.mark.parametrize("hidden", [0, 100, 600])
@pytest.mark.parametrize("text", sorted(TEXTS))
async def test_an_exact_counter_tells_the_savings_whatever_the_server_adds(
    text: str, hidden: int, replier: Replier
) -> None:
    model = Backend(replier, counter=WordPieceCounter(), hidden=hidden)
    metrics, _ = await run(model, material=TEXTS[text])
    assert ratios_of(metrics) == pytest.approx(model.find_truth(), rel=0.03)
    assert metrics.savings is not None
    assert metrics.savings.is_measured


@pytest.mark.parametrize("text", sorted(TEXTS))
@pytest.mark.parametrize("counter", ["bytes", "estimate"])
async def test_windows_without_text_tell_the_savings_for_any_counter(counter: str, text: str) -> None:
    model = Backend(answer_after_reading, counter=COUNTERS[counter]())
    # By bytes, a smaller window is nearly all question, rules and fences.
    metrics, _ = await run(model, material=TEXTS[text], chunk_size=3072)
    assert ratios_of(metrics) == pytest.approx(model.find_truth(), rel=0.04)
    assert metrics.savings is not None
    assert not metrics.savings.is_measured


@pytest.mark.parametrize("text", sorted(TEXTS))
@pytest.mark.parametrize("counter", ["bytes", "estimate"])
async def test_an_estimate_does_not_take_a_servers_own_template_for_text(counter: str, text: str) -> None:
    model = Backend(answer_after_reading, counter=COUNTERS[counter](), hidden=100)
    metrics, _ = await run(model, material=TEXTS[text])
    assert all(said >= 0.98 * true for said, true in zip(ratios_of(metrics), model.find_truth(), strict=True))


async def test_a_run_whose_budget_ends_is_compared_with_one_pass_over_what_it_read() -> None:
    model = Backend(answer_after_reading, counter=WordPieceCounter())
    metrics, reason = await run(model, material=BOOK, budget=Budget(max_total_tokens=6_000))
    assert reason is FinishReason.BUDGET_EXHAUSTED
    assert 1 < metrics.total_iterations < 10
    assert len(model.read) < len(BOOK) / 8
    assert ratios_of(metrics) == pytest.approx(model.find_truth(), rel=0.03)
    assert metrics.savings is not None
    assert metrics.savings.peak_context_pct < 80


async def test_a_run_that_fails_is_compared_with_one_pass_over_what_it_read() -> None:
    def fail_at_the_fourth(_: ChatRequest) -> str:
        if len(model.requests) == 4:
            raise ModelFailedError("The model broke off")
        return NOTES

    model = Backend(fail_at_the_fourth, counter=WordPieceCounter())
    metrics, reason = await run(model, material=BOOK)
    assert reason is None
    assert metrics.total_iterations == 3
    assert ratios_of(metrics) == pytest.approx(model.find_truth(), rel=0.03)


async def test_text_that_is_shown_again_is_counted_once() -> None:
    def ignore_the_first_window(request: ChatRequest) -> str:
        return "" if len(model.requests) == 2 else answer_after_reading(request)

    model = Backend(ignore_the_first_window, counter=WordPieceCounter())
    metrics, _ = await run(model, material=TEXTS["prose"])
    once = Backend(answer_after_reading, counter=WordPieceCounter())
    await run(once, material=TEXTS["prose"])
    spent = sum(usage.total_tokens for usage in model.usages)
    one_pass = sum(usage.total_tokens for usage in once.usages) / once.find_truth()[1]
    assert ratios_of(metrics)[1] == pytest.approx(spent / one_pass, rel=0.01)
