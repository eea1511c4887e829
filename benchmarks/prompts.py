"""Measure what the prompts of strategies are worth with a real model: `python -m benchmarks.prompts --model NAME`.

Asks each question of word_problems.jsonl alone at temperature 0 and through each strategy, and prints a row for each
way: right answers, samples with a tagged answer, samples whose answer was found without a tag, samples without an
answer, calls, and the tokens that the model read and wrote. An answer is right if its last number is the right one. Of
a plain reply that is the last number of its whole text.

`--url URL` is the address of an OpenAI-compatible server; several share the questions. `--record FILE` keeps each reply
and gives it to an equal request again. So an interrupted run goes on, ways that ask for the same share the reply, and a
complete record needs no server. Writes results/prompts.json beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.machine import circumstances
from reasond_server.context.answers import extract_answer
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text, WrappedModel
from reasond_server.llm.openai.backend_options import BackendOptions, Timeouts
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel
from reasond_server.types import Task, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond_server.llm.model import ChatModel, ModelEvent
    from reasond_server.strategies.strategy import ReasoningStrategy

HERE: Final = Path(__file__).resolve().parent
PROBLEMS: Final = HERE / "word_problems.jsonl"
RESULTS: Final = HERE / "results" / "prompts.json"
PACKAGES: Final = ("reasond-server",)
PLAIN: Final = "plain question"
# The same mark in each run, so that equal requests are found in the record.
_NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_TIMEOUTS: Final = Timeouts(first_token_s=3000, idle_s=3000, total_s=3600)


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one way of asking came to, over all questions."""

    way: str
    questions: int
    right: int = 0
    tagged: int = 0
    read_untagged: int = 0
    unread: int = 0
    calls: int = 0
    tokens_read: int = 0
    tokens_written: int = 0

    def count(self, *, is_tagged: bool, is_read: bool) -> None:
        """Count a sample, or a plain reply."""
        self.tagged += is_tagged and is_read
        self.read_untagged += is_read and not is_tagged
        self.unread += not is_read

    @property
    def line(self) -> str:
        """The figures as a row of a table."""
        figures = [self.right, self.tagged, self.read_untagged, self.unread, self.calls]
        return (
            f"| {self.way} | {' | '.join(f'{each:,}' for each in [*figures, self.tokens_read, self.tokens_written])} |"
        )


class RecordedModel(WrappedModel["ChatModel"]):
    """A model whose replies are kept in a file and given again; `taken` are the replies of this instance by label."""

    def __init__(self, *, model: ChatModel, record: dict[str, Any], path: Path | None) -> None:
        super().__init__(model=model)
        self._record = record
        self._path = path
        self.taken: dict[str, str] = {}
        self.usage = Usage()

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Give the recorded reply, or call the model and record its reply."""
        asked = [request.messages, request.max_tokens, request.temperature, request.stop, request.label]
        key = hashlib.sha256(repr(asked).encode()).hexdigest()
        if key not in self._record:
            self._record[key] = await self._ask(request)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"key": key, **self._record[key]}, ensure_ascii=False) + "\n")
        reply = self._record[key]
        usage = Usage(input_tokens=reply["read"], output_tokens=reply["written"], model_calls=1)
        self.taken[request.label] = reply["text"]
        self.usage += usage
        yield Text(text=reply["text"])
        yield Finished(reason=ModelFinish(reply["finish"]), usage=usage, matched_stop=reply["matched_stop"])

    async def _ask(self, request: ChatRequest) -> dict[str, Any]:
        text = ""
        async for event in super().stream(request):
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, Finished):
                return {
                    "text": text,
                    "finish": str(event.reason),
                    "matched_stop": event.matched_stop,
                    "read": event.usage.input_tokens,
                    "written": event.usage.output_tokens,
                }
        raise SystemExit("the model's stream had no end")


def read_number(text: str) -> Decimal | None:
    """Return the last number of a text, without its separators of thousands."""
    found = _NUMBER.findall(text.replace("{,}", ","))
    return Decimal(found[-1].replace(",", "")) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of asking: a strategy with its configuration, or the question alone at temperature 0."""

    name: str
    strategy: ReasoningStrategy[Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int

    async def ask(self, model: RecordedModel, question: str, figures: Figures) -> str:
        """Return the answer, and count what was read of the samples."""
        if self.strategy is None:
            return await self._ask_plainly(model, question, figures)
        config = self.strategy.config_type.model_validate({**self.config, "max_tokens": self.max_tokens})
        context = RunContext(config=config, model=model, new_nonce=lambda: _NONCE)
        answers, answer = [], ""
        async for event in self.strategy.run(Task(query=question), context):
            if isinstance(event, Outcome):
                answer = event.answer
            elif isinstance(event, Step) and getattr(event.detail, "stage", "sample") == "sample":
                answers.append(getattr(event.detail, "answer", ""))
        for number, found in enumerate(answers):
            figures.count(is_tagged="<answer>" in model.taken[f"sample {number}"], is_read=bool(found))
        return answer

    async def _ask_plainly(self, model: RecordedModel, question: str, figures: Figures) -> str:
        asked = (Message(role=Role.USER, content=question),)
        request = ChatRequest(messages=asked, max_tokens=self.max_tokens, temperature=0.0, label=PLAIN)
        text = "".join([event.text async for event in model.stream(request) if isinstance(event, Text)])
        figures.count(is_tagged=False, is_read=bool(extract_answer(text)))
        return text


def list_ways(options: argparse.Namespace) -> list[Way]:
    """Return the ways that the arguments ask for."""
    most, samples = options.max_tokens, {"samples": options.samples}
    ways = [
        Way(name=PLAIN, max_tokens=most),
        Way(name="self_consistency", strategy=SelfConsistency(), config=samples, max_tokens=most),
        Way(name="best_of_n", strategy=BestOfN(), config={**samples, "max_judge_tokens": most}, max_tokens=most),
    ]
    return [way for way in ways if not options.only or way.name in options.only]


async def measure(options: argparse.Namespace) -> list[Figures]:
    """Ask all questions in all ways."""
    problems = [json.loads(line) for line in PROBLEMS.read_text("utf-8").splitlines()][: options.questions]
    record = read_record(options.record)
    models = [_connect(url, options.model) for url in options.url or [""]]
    places = [asyncio.Semaphore(options.at_once) for _ in models]

    async def ask(way: Way, figures: Figures, place: int) -> None:
        problem, server = problems[place], place % len(models)
        async with places[server]:
            model = RecordedModel(model=models[server], record=record, path=options.record)
            answer = await way.ask(model, problem["question"], figures)
        figures.right += read_number(answer) == Decimal(problem["answer"])
        figures.calls += model.usage.model_calls
        figures.tokens_read += model.usage.input_tokens
        figures.tokens_written += model.usage.output_tokens

    found = []
    for way in list_ways(options):
        figures = Figures(way=way.name, questions=len(problems))
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


def _connect(url: str, model: str) -> ChatModel:
    if url:
        return build_model(BackendOptions(name="llm", model=model, base_url=url, timeouts=_TIMEOUTS))

    def refuse(request: ChatRequest) -> str:
        raise SystemExit(f"{request.label or 'a request'} is not in the record: name a model with --url")

    return FunctionModel(refuse, name=model)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", help="address of an OpenAI-compatible server, with /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--questions", type=int, default=None)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    if options.only:
        return
    report = {
        "circumstances": circumstances(PACKAGES),
        "model": options.model,
        "samples": options.samples,
        "figures": [asdict(each) for each in found],
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
