"""Measure what the prompts of strategies are worth with a real model: `python -m benchmarks.prompts --model NAME`.

Asks each task of a file alone and through each strategy, at `--temperature` (votes: `--vote-temperature`), and prints a
row for each way, of its final replies (for votes: of its samples): those with a tagged answer, those whose answer was
found without a tag, those without an answer, and those that thought first; also right answers, answers that we spoiled,
calls, and the tokens that the model read and wrote. The rules:

- An answer is right if its last number is the right one, if its last letter of a choice is the right one or, without a
  letter, if it has the text of the right choice and of no other, or if it holds the right text. Of a plain reply that
  is the last number of its whole text. Where a task names wrong texts of the same kind, the last sentence that names
  the right one or a wrong one must name the right one alone; numbers are compared by their value.
- A reply thought first if at least 12 words stand before its tag, or in all of it without a tag; a program, if it has
  at least two lines before the one that prints.
- An answer is spoiled if it is not right although the plain question was, or if a limit of ours ended the run.
- A program to write (a task with `tests`) is right if the grader of `reasond eval` says so: the fenced Python of the
  answer, or all of it, passes the tests in the sandbox. A plain reply is read if it has a fenced block. An answer is
  also spoiled if the last reply, unless it is a sample, holds a right program and what was read of it does not. Which
  replies thought first says nothing here.

`--tasks` names the file: word_problems.jsonl, made_problems.jsonl, choices.jsonl, extraction.jsonl (one value in a
text of some 2,600 characters) or programs.jsonl beside this file, or one of yours.

best_of_n is asked with each of its judges, and "votes weighed" with `weigh_votes`; a record has the probabilities that
they read. "votes, confidence X" stop early, of up to `--samples`, all at one temperature; X = 1 stops when the vote is
certain, and the others take the first of the same samples; they are asked with more than ten.

`--only WAY` asks in one way beside the plain question; program_of_thought needs a sandbox, and is not asked for
programs to write, because its answer is what its program prints. `--url URL` is the address of an OpenAI-compatible
server; several share the questions. `--record FILE` keeps each reply and gives it to an equal request again. So an
interrupted run goes on, ways that ask for the same share the reply, and a complete record needs no server.
Writes results/prompts.json beside this file, with 95 % intervals of the share of right answers.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, astuple, dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.machine import write_report
from reasond_server.assembly.workshops import open_python_programs
from reasond_server.context.answers import extract_answer
from reasond_server.dialects.code_blocks import read_blocks
from reasond_server.evaluation.graders import Graders, is_same_number
from reasond_server.evaluation.items import Grader, Item
from reasond_server.evaluation.report import compute_interval
from reasond_server.llm.counting import EstimatingCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text, WrappedModel
from reasond_server.llm.openai.backend_options import BackendOptions, RetryPolicy, Timeouts
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import ModelProfile
from reasond_server.strategies.best_of_n import AnswerJudge, BestOfN
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
from reasond_server.testing import FunctionModel
from reasond_server.types import FinishReason, Task, TokenChance, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel, ModelEvent
    from reasond_server.tools.programs import ProgramRunner

HERE: Final = Path(__file__).resolve().parent
PROBLEMS: Final = HERE / "word_problems.jsonl"
_FEWEST_WORDS: Final = 12
ENDED_BY_US: Final = frozenset({FinishReason.TRUNCATED, FinishReason.MAX_ITERATIONS, FinishReason.BUDGET_EXHAUSTED})
RESULTS: Final = HERE / "results" / "prompts.json"
PACKAGES: Final = ("reasond-server",)
PLAIN: Final = "plain question"
JUDGES: Final = (AnswerJudge.EXPECTED_SCORE, AnswerJudge.TOURNAMENT)
# The last stands for 1, with which samples would have temperatures of their own.
CONFIDENCES: Final = {"0.8": 0.8, "0.9": 0.9, "0.95": 0.95, "1": 1 - 1e-12}
# A vote of ten is certain before five equal answers end it at 0.8.
_FEWEST_FOR_BOUNDS: Final = 10
# The same mark in each run, so that equal requests are found in the record.
NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"
_LETTER: Final = re.compile(r"(?<![A-Za-z0-9])[A-E](?![A-Za-z0-9])")
_CHOICE: Final = re.compile(r"^([A-E])\) (.+)$", re.MULTILINE)
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_WORD: Final = re.compile(r"\d[\d,]*(?:\.\d+)?|[^\W\d]+")
_END_OF_SENTENCE: Final = re.compile(r"[.!?:]\s|\n")
# Asked for only by those ways that read probabilities.
_TOP_TOKENS: Final = 20
_TIMEOUTS: Final = Timeouts(first_token_s=3000, idle_s=3000, total_s=3600)
# What fails of many calls at once is asked again, and no other call fails for it.
_RETRIES: Final = RetryPolicy(max_attempts=5, budget_ratio=1.0, breaker_window=1000, breaker_ratio=1.0)


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one way of asking came to, over all questions."""

    way: str
    questions: int
    temperature: float = 0.0
    right: int = 0
    tagged: int = 0
    read_untagged: int = 0
    unread: int = 0
    thought_first: int = 0
    spoiled: int = 0
    calls: int = 0
    tokens_read: int = 0
    tokens_written: int = 0

    def count(self, reply: str, *, is_read: bool) -> None:
        """Count a final reply, or a sample."""
        is_tagged = "<answer>" in reply
        self.thought_first += has_thought_first(reply)
        self.tagged += is_tagged and is_read
        self.read_untagged += is_read and not is_tagged
        self.unread += not is_read

    @property
    def line(self) -> str:
        """The figures as a row of a table."""
        replies = [self.tagged, self.read_untagged, self.unread, self.thought_first]
        figures = [self.right, self.spoiled, *replies, self.calls]
        return (
            f"| {self.way} | {' | '.join(f'{each:,}' for each in [*figures, self.tokens_read, self.tokens_written])} |"
        )


class RecordedModel(WrappedModel["ChatModel"]):
    """A model whose replies are kept in a file and given again.

    `taken` are the labels of this instance's requests, with the reply as it is recorded and whether it had to answer.
    """

    def __init__(self, *, model: ChatModel, record: dict[str, Any], path: Path | None) -> None:
        super().__init__(model=model)
        self._record = record
        self._path = path
        self._asked = Counter[str]()
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.usage = Usage()

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Give the recorded reply, or call the model and record its reply."""
        asked: list[Any] = [request.messages, request.max_tokens, request.temperature, request.stop, request.label]
        if request.tools:
            asked += [tuple(request.tools), request.tool_choice]
        if request.top_logprobs is not None:
            asked += [request.top_logprobs]
        key = hashlib.sha256(repr(asked).encode()).hexdigest()
        self._asked[key] += 1
        # Votes on calls ask the same again, for another reply.
        if request.temperature and self._asked[key] > 1:
            key = f"{key} {self._asked[key]}"
        if key not in self._record:
            self._record[key] = await self._ask(request)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"key": key, **self._record[key]}, ensure_ascii=False) + "\n")
        reply = self._record[key]
        usage = Usage(input_tokens=reply["read"], output_tokens=reply["written"], model_calls=1)
        self.taken.append((request.label, {**reply, "must_answer": request.tool_choice == "none"}))
        self.usage += usage
        yield Text(text=reply["text"])
        for call in reply.get("calls", ()):
            yield ToolCall(**call)
        tokens = [TokenChance(text=text, logprob=logprob, top=top) for text, logprob, top in reply.get("tokens", ())]
        yield Finished(
            reason=ModelFinish(reply["finish"]), usage=usage, matched_stop=reply["matched_stop"], tokens=tokens
        )

    def count_into(self, figures: Any) -> None:  # noqa: ANN401 - of any program that counts these three
        """Add the calls and tokens of this instance to figures."""
        figures.calls += self.usage.model_calls
        figures.tokens_read += self.usage.input_tokens
        figures.tokens_written += self.usage.output_tokens

    async def _ask(self, request: ChatRequest) -> dict[str, Any]:
        text, calls = "", []
        async for event in super().stream(request):
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, ToolCall):
                calls.append(asdict(event))
            elif isinstance(event, Finished):
                return {
                    "text": text,
                    "finish": str(event.reason),
                    "matched_stop": event.matched_stop,
                    "read": event.usage.input_tokens,
                    "written": event.usage.output_tokens,
                    **({"calls": calls} if calls else {}),
                    **({"tokens": [astuple(each) for each in event.tokens]} if event.tokens else {}),
                }
        raise SystemExit("the model's stream had no end")


def read_number(text: str) -> Decimal | None:
    """Return the last number of a text, without its separators of thousands."""
    found = _NUMBER.findall(text.replace("{,}", ","))
    return Decimal(found[-1].replace(",", "")) if found else None


def has_thought_first(reply: str) -> bool:
    """Return whether a reply has steps in front of its answer, or a program lines in front of the one that prints."""
    if blocks := read_blocks(reply):
        lines = [line for line in blocks[-1].text.partition("print(")[0].splitlines() if line.strip()]
        return len(lines) > 1
    return len(reply.partition("<answer>")[0].split()) >= _FEWEST_WORDS


def split_words(text: str) -> str:
    """Return the words of a text, a space around each; numbers without separators of thousands and idle zeros."""
    words = [
        f"{Decimal(word.replace(',', '')).normalize():f}" if word[0].isdigit() else word
        for word in _WORD.findall(text.casefold())
    ]
    return f" {' '.join(words)} "


def is_named_alone(answer: str, right: str, wrong: Sequence[str]) -> bool:
    """Return whether the last sentence that names the right or a wrong text names the right one and no other."""
    for sentence in reversed(_END_OF_SENTENCE.split(answer)):
        words = split_words(sentence)
        if named := {each for each in (right, *wrong) if split_words(each) in words}:
            return named == {right}
    return False


def is_right(answer: str, right: str, question: str = "", wrong: Sequence[str] | None = None) -> bool:
    """Return whether an answer gives the right number, text or choice of those in the question."""
    if wrong is not None:
        return is_named_alone(answer, right, wrong)
    if _NUMBER.fullmatch(right):
        found = read_number(answer)
        return found is not None and is_same_number(Fraction(right), Fraction(found))
    if len(right) == 1:
        named = [each for each in _CHOICE.findall(question) if each[1].casefold() in answer.casefold()]
        # "6.5" also holds the text of the choice "6".
        longest = max((text for _, text in named), key=len, default="")
        others = [text for _, text in named if text not in longest]
        letters = _LETTER.findall(answer) or [letter for letter, text in named if text == longest and not others]
        return bool(letters) and letters[-1] == right
    return right.casefold() in answer.casefold()


async def is_task_right(problem: Mapping[str, Any], answer: str, graders: Graders) -> bool:
    """Return whether an answer to a task is right: a program by its tests, any other by `is_right`."""
    question = problem["question"]
    if "tests" in problem:
        item = Item(item_id="", question=question, grader=Grader.PYTHON, tests=problem["tests"])
        return (await graders.grade(item, answer=answer)).is_right
    return is_right(answer, problem["answer"], question, problem.get("wrong"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of asking: a strategy with its configuration, or the question alone."""

    name: str
    strategy: ReasoningStrategy[Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    figures_type: ClassVar[type[Figures]] = Figures

    async def ask(
        self, model: RecordedModel, problem: Mapping[str, Any], figures: Figures, programs: ProgramRunner
    ) -> tuple[str, FinishReason]:
        """Return the answer and how the run ended, and count what was read of the replies."""
        task = Task(query=problem["question"], material=problem.get("material", ""))
        if self.strategy is None:
            return await self._ask_plainly(model, task, figures, is_program="tests" in problem)
        config = self.strategy.config_type.model_validate(self.config)
        context = RunContext(config=config, model=model, new_nonce=lambda: NONCE, programs=programs)
        answers: list[str] = []
        answer, reason = "", FinishReason.FAILED
        async for event in self.strategy.run(task, context):
            if isinstance(event, Outcome):
                answer, reason = event.answer, event.finish_reason
            elif isinstance(event, Step) and getattr(event.detail, "stage", "sample") == "sample":
                answers.append(getattr(event.detail, "answer", ""))
        samples = {label: reply["text"] for label, reply in model.taken if label.startswith("sample ")}
        for number, found in enumerate(answers if samples else ()):
            figures.count(samples[f"sample {number}"], is_read=bool(found))
        if not samples:
            figures.count(model.taken[-1][1]["text"], is_read=bool(answer))
        return answer, reason

    async def _ask_plainly(
        self, model: RecordedModel, task: Task, figures: Figures, *, is_program: bool
    ) -> tuple[str, FinishReason]:
        text = f"{task.query}\n\n{task.material}" if task.material else task.query
        asked = (Message(role=Role.USER, content=text),)
        request = ChatRequest(messages=asked, label=PLAIN, **self.config)
        reply = "".join([event.text async for event in model.stream(request) if isinstance(event, Text)])
        figures.count(reply, is_read=bool(read_blocks(reply) if is_program else extract_answer(reply)))
        return reply, FinishReason.ANSWERED


def list_ways(options: argparse.Namespace) -> list[Way]:
    """Return all ways of this program, as the arguments set them."""
    limit = {"max_tokens": options.max_tokens}
    samples = {"samples": options.samples, "temperature": options.vote_temperature}
    heat = {"temperature": options.temperature}
    bounds = CONFIDENCES.items() if options.samples > _FEWEST_FOR_BOUNDS else ()
    early = [(f"votes, confidence {name}", {**limit, **samples, "confidence": bound}) for name, bound in bounds]
    judged = {**limit, **samples, "max_judge_tokens": options.max_tokens}
    small = {"max_tokens_per_thought": options.max_tokens, "max_model_calls": 12, "branching": 2, "max_depth": 3}
    chains = {"chains": options.samples, "group": min(options.samples, 8), "rounds": 2}
    return [
        Way(name=PLAIN, config={**limit, **heat}),
        Way(name="chain_of_thought", strategy=ChainOfThought(), config={**limit, **heat}),
        Way(name="plan_and_solve", strategy=PlanAndSolve(), config={**limit, **heat, "max_plan_tokens": 256}),
        Way(name="program_of_thought", strategy=ProgramOfThought(), config={**limit, **heat}),
        Way(name="self_consistency", strategy=SelfConsistency(), config={**limit, **samples}),
        Way(name="votes weighed", strategy=SelfConsistency(), config={**limit, **samples, "weigh_votes": True}),
        *(Way(name=name, strategy=SelfConsistency(), config=config) for name, config in early),
        Way(name="best_of_n", strategy=BestOfN(), config=judged),
        *(Way(name=f"best_of_n, {each}", strategy=BestOfN(), config={**judged, "judge": each}) for each in JUDGES),
        Way(
            name="self_aggregation",
            strategy=SelfAggregation(),
            config={**limit, "temperature": options.vote_temperature, **chains},
        ),
        Way(name="self_refine", strategy=SelfRefine(), config={**limit, **heat, "max_rounds": 1}),
        Way(name="chain_of_verification", strategy=ChainOfVerification(), config={**limit, **heat}),
        Way(name="tree_of_thought", strategy=TreeOfThought(), config={**small, **heat}),
        Way(name="react", strategy=React(), config={**heat, "max_tokens_per_step": options.max_tokens}),
        Way(
            name="bounded_context",
            strategy=BoundedContext(),
            config={**heat, "chunk_size": 2048, "carryover_size": 512},
        ),
    ]


async def measure(options: argparse.Namespace, ways: Sequence[Way]) -> list[Figures]:
    """Ask all questions in those of the ways that the arguments ask for; the plain question is one of them."""
    asked = [way for way in ways if not options.only or way.name in {PLAIN, *options.only}]
    async with open_python_programs() as programs:
        return await _measure(options, asked, programs)


async def _measure(options: argparse.Namespace, ways: Sequence[Way], programs: ProgramRunner) -> list[Figures]:
    problems = [json.loads(line) for line in options.tasks.read_text("utf-8").splitlines()][: options.questions]
    graders = Graders(programs=programs)
    if any("tests" in problem for problem in problems):
        if not programs.is_available:
            raise SystemExit("these tasks have tests, and there is no sandbox to run them in")
        ways = [way for way in ways if way.name != ProgramOfThought.name]
    plainly_right = set[int]()
    record = read_record(options.record)
    models = [connect(url, options.model) for url in options.url or [""]]
    places = [asyncio.Semaphore(options.at_once) for _ in models]

    async def ask(way: Way, figures: Figures, place: int) -> None:
        problem, server = problems[place], place % len(models)
        async with places[server]:
            model = RecordedModel(model=models[server], record=record, path=options.record)
            answer, reason = await way.ask(model, problem, figures, programs)
        if await is_task_right(problem, answer, graders):
            figures.right += 1
            plainly_right.update({place} if way.name == PLAIN else ())
        else:
            # A run that failed before it got a reply has no last one.
            label, last = model.taken[-1] if model.taken else ("", {"text": ""})
            is_asked = "tests" in problem and not label.startswith("sample ")
            is_lost = is_asked and await is_task_right(problem, last["text"], graders)
            figures.spoiled += place in plainly_right or reason in ENDED_BY_US or is_lost
        model.count_into(figures)

    found = []
    for way in ways:
        figures = way.figures_type(way=way.name, questions=len(problems), temperature=way.config["temperature"])
        async with asyncio.TaskGroup() as group:
            for place in range(len(problems)):
                group.create_task(ask(way, figures, place))
        print(figures.line, flush=True)
        found.append(figures)
    for model in models:
        await model.aclose()
    return found


def read_record(path: Path | None) -> dict[str, Any]:
    """Return the recorded replies by key; none where there is no record yet."""
    if path is None or not path.exists():
        return {}
    return {reply.pop("key"): reply for reply in map(json.loads, path.read_text("utf-8").splitlines())}


def connect(url: str, model: str) -> ChatModel:
    """Return the model at `url`; without one, a model that refuses every request."""
    if url:
        options = BackendOptions(
            name="llm",
            model=model,
            base_url=url,
            timeouts=_TIMEOUTS,
            retries=_RETRIES,
            profile=ModelProfile(most_logprobs=_TOP_TOKENS),
        )
        return build_model(options)

    def refuse(request: ChatRequest) -> str:
        raise SystemExit(f"{request.label or 'a request'} is not in the record: name a model with --url")

    # Texts are cut as with the server, whose tokens are estimated too.
    played = FunctionModel(refuse, name=model, has_native_tools=True, counter=EstimatingCounter())
    played.most_logprobs = _TOP_TOKENS
    return played


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the arguments that name a model and the record of its replies."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", help="address of an OpenAI-compatible server, with /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--digest", default="", help="digest of the model's file, for the report")
    parser.add_argument("--record", type=Path)
    return parser


def read_options(description: str | None, tasks: Path) -> argparse.Namespace:
    """Return the arguments of a program that asks tasks in several ways; `tasks` are those without `--tasks`."""
    parser = build_parser(description)
    parser.add_argument("--tasks", type=Path, default=tasks)
    parser.add_argument("--questions", type=int, default=None)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--vote-temperature", type=float, default=0.7)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    return parser.parse_args()


def main() -> None:
    """Measure, print and write the results."""
    options = read_options(__doc__, PROBLEMS)
    keep_figures(asyncio.run(measure(options, list_ways(options))), options)


def bound_share(right: int, n: int) -> dict[str, float]:
    """Return the 95 % interval of a share, as results have it."""
    return {name: round(bound, 3) for name, bound in asdict(compute_interval(right, n)).items()}


def keep_figures(found: Sequence[Figures], options: argparse.Namespace) -> None:
    """Write the results; those of other models, ways, tasks, temperatures and numbers of questions stay."""
    rows = json.loads(RESULTS.read_text("utf-8"))["figures"] if RESULTS.exists() else []
    about = {"model": options.model, "digest": options.digest, "samples": options.samples}
    about["tasks"] = options.tasks.stem
    for each in found:
        row = {**about, **asdict(each), **bound_share(each.right, each.questions)}
        same = (*about, "way", "temperature", "questions")
        rows = [other for other in rows if any(other[name] != row[name] for name in same)]
        rows.append(row)
    write_report(RESULTS, PACKAGES, figures=rows)


if __name__ == "__main__":
    main()
