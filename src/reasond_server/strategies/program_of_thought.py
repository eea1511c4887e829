"""Program of thought: the model writes a Python program, the sandbox runs it, and what it prints is the answer."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.answers import strip_tags
from reasond_server.context.calls import LEAST_TOKENS, ModelReply
from reasond_server.context.stages import Shown, StageCalls, prepare_stages
from reasond_server.context.tags import restore
from reasond_server.dialects.code_blocks import choose_python, read_blocks
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.strategy import (
    SHORTAGES,
    Outcome,
    ReasoningStrategy,
    Step,
    StrategyConfig,
    Temperature,
    Wrote,
    find_shortage_reason,
)
from reasond_server.tools.programs import MAX_OUTPUT_BYTES, ProgramResult, build_refusal, clip_output
from reasond_server.types import CostClass, FinishReason, ProgramOfThoughtMetrics, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import RunContext, StrategyEvent

PROGRAM: Final = "program"
OUTPUT: Final = "output"

_WRITE: Final = (
    "Write one Python program that computes the answer and prints it alone. Give each fact of the question and the "
    "result of each step a variable with a telling name, for example:\n"
    "```python\nboxes = 4\npens_per_box = 6\npens = boxes * pens_per_box\nlost_pens = 3\nprint(pens - lost_pens)\n```\n"
    "It may use the standard library; it gets no input and has no network. {material}Write the program between "
    "```python and ```, and nothing after it."
)
_MATERIAL: Final = "The material is in the file material.txt, too. "
_FIX: Final = (
    "The passages hold a program that was to compute the answer, and what happened when it was run. Find the mistake. "
)
_TAGGED: Final = re.compile(r"<(python|code)>\s*(.{1,50000}?)\s*</\1>", re.DOTALL | re.IGNORECASE)
_PROMPTED: Final = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)


class ProgramOfThoughtConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_attempts: Annotated[
        int, Field(ge=1, le=5, description="Most programs: one, and a corrected one for each that fails.")
    ] = 2
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write for one program.")
    ] = 2048
    max_program_s: Annotated[
        float, Field(ge=1.0, le=300.0, allow_inf_nan=False, description="Most seconds that one program may run.")
    ] = 10.0
    temperature: Temperature = 0.0

    @property
    def runs_programs(self) -> bool:
        """Always true."""
        return True

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return 2 * self.max_attempts


class ProgramOfThought(ReasoningStrategy[ProgramOfThoughtConfig]):
    """Let the model write a program instead of calculating, and run it in the sandbox of the server.

    A program fails if its exit code is not 0, it prints nothing or more than 64 KiB, or it exceeds a limit. Then the
    model is shown the program and the end of its output, as data, and asked for a corrected one.

    Cost: at most a = max_attempts calls of P + G tokens, G <= max_tokens, and as many programs of at most max_program_s
    seconds; calls after the first also read the last program and its output. Memory: the last program and its output.
    Latency: calls and programs one after the other.

    Failure modes: a program that runs and computes the wrong thing is not noticed. If no program succeeds, there is no
    answer (MAX_ITERATIONS), and the steps show each attempt. Without a sandbox the task is refused before a token is
    spent.

    Source: Chen et al. 2022, arXiv 2211.12588.
    """

    name: ClassVar[str] = "program_of_thought"
    description: ClassVar[str] = (
        "Has the model write a Python program, runs it in the sandbox and answers with what it prints: for questions "
        "whose answer is computed."
    )
    config_type: ClassVar[type[ProgramOfThoughtConfig]] = ProgramOfThoughtConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = (
        "at most max_attempts model calls, which write at most max_tokens each, and as many programs; 1 of each where "
        "the first program succeeds"
    )
    is_replayable: ClassVar[bool] = True

    async def run(self, task: Task, context: RunContext[ProgramOfThoughtConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Write programs until one succeeds; see the base class.

        Raises:
            SandboxUnavailableError: there is no sandbox for programs, or it could not run one.
            ContextExhaustedError: question and material leave no room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ModelError: a call failed.
        """
        if not context.programs.is_available:
            raise build_refusal()
        write = _WRITE.format(material=_MATERIAL if task.material else "")
        calls = await prepare_stages(
            task, model=context.model, nonce=context.new_nonce(), instructions=(write, _FIX + write), shown=2
        )
        run = _ProgramRun(task=task, context=context, calls=calls, rule=write)
        for _ in range(context.config.max_attempts):
            try:
                async with aclosing(run.attempt()) as events:
                    async for event in events:
                        yield event
            except SHORTAGES as error:
                if not run.attempts:
                    raise
                run.reason = find_shortage_reason(error)
                run.warnings.append(error.full_message)
                break
            if run.is_over:
                break
        yield run.build_outcome()


@dataclass(slots=True, kw_only=True)
class _ProgramRun:
    """The state of one run: the last program, and what came of it in words, empty before the first."""

    task: Task
    context: RunContext[ProgramOfThoughtConfig]
    calls: StageCalls
    rule: str
    attempts: int = 0
    program: str = ""
    failure: str = ""
    program_time_s: float = 0.0
    answer: str = ""
    reason: FinishReason = FinishReason.MAX_ITERATIONS
    is_over: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> ProgramOfThoughtMetrics:
        """The metrics so far."""
        is_answered = self.reason is FinishReason.ANSWERED
        return ProgramOfThoughtMetrics(
            attempts=self.attempts,
            failed_attempts=self.attempts - is_answered,
            program_time_s=self.program_time_s,
        )

    async def attempt(self) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for a program and run it."""
        config = self.context.config
        if self.failure:
            shown = [Shown(name=PROGRAM, text=self.program), Shown(name=OUTPUT, text=self.failure)]
            prompt = self.calls.fit(_FIX + self.rule, *shown, max_tokens=config.max_tokens)
        else:
            prompt = self.calls.fit(self.rule, max_tokens=config.max_tokens)
        async with aclosing(self.calls.stream(prompt, temperature=config.temperature, kinds=())) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        self.attempts += 1
        if reply.finish is ModelFinish.CONTENT_FILTER:
            self.reason, self.is_over = FinishReason.CONTENT_FILTERED, True
            self.warnings.append("The provider withheld the program.")
        text = reply.parsed.text
        program = "" if self.is_over else read_program(text, is_whole=reply.finish is ModelFinish.STOP)
        yield Step(
            detail=StageStep(stage=PROGRAM, text=program or text.strip()), answer_found=False, metrics=self.metrics
        )
        if program:
            # The prompt shows tags of the task neutralised; the program shall have them as they were.
            self.program = restore(program)
            yield await self._run_program(self.program)
        elif not self.is_over:
            self.program = text.strip()
            self.failure = _describe_missing(reply)

    async def _run_program(self, program: str) -> Step:
        """Run a program, note its answer or its failure, and return the step."""
        result = await self.context.programs.run(
            program, material=self.task.material, most_s=self.context.config.max_program_s
        )
        self.program_time_s += result.elapsed_s
        output = result.output.strip()
        if problem := find_problem(result):
            self.failure = f"{problem}\n{clip_output(output)}".strip()
            detail = StageStep(stage=OUTPUT, text=self.failure)
            return Step(detail=detail, answer_found=False, metrics=self.metrics)
        self.answer, self.reason, self.is_over = output, FinishReason.ANSWERED, True
        return Step(detail=StageStep(stage=OUTPUT, text="", answer=output), answer_found=True, metrics=self.metrics)

    def build_outcome(self) -> Outcome:
        """Return the outcome of the run."""
        warnings = [*self.warnings, *self.calls.warnings]
        if self.failure and self.reason is not FinishReason.ANSWERED:
            problem = self.failure.partition("\n")[0]
            warnings.append(f"No program of {self.attempts} gave an answer. The last one: {problem}")
        return Outcome(answer=self.answer, finish_reason=self.reason, metrics=self.metrics, warnings=tuple(warnings))


def read_program(text: str, *, is_whole: bool) -> str:
    """Return the program of a reply; empty if there is none.

    That is the last block of code that prints, or else the last one; of the blocks that are marked as Python, if there
    are any. Without a block it is what stands between `<python>` or `<code>` tags, or the whole text if it prints. A
    block without its end counts only if the model ended the reply (`is_whole`). The prompts of a session are left out.
    """
    blocks = read_blocks(text := strip_tags(text) if "answer>" in text else text)
    whole = [block for block in blocks if block.text.strip() and (block.is_closed or is_whole)]
    if usable := choose_python(whole):
        return _drop_prompts(next((block for block in reversed(usable) if "print(" in block.text), usable[-1]).text)
    if tagged := _TAGGED.findall(text):
        return _drop_prompts(str(tagged[-1][1]))
    return _drop_prompts(dedent(text.strip("`\r\n"))) if is_whole and not blocks and "print(" in text else ""


def _drop_prompts(program: str) -> str:
    """Return the lines of a session that were typed; other programs as they are."""
    if not program.startswith(">>>"):
        return program
    return "\n".join(_PROMPTED.sub("", line) for line in program.splitlines() if _PROMPTED.match(line))


def find_problem(result: ProgramResult) -> str:
    """Return why a program gave no answer, as a sentence; empty if what it printed is the answer."""
    if result.exceeded:
        return f"The program was ended: it took {result.exceeded}."
    if result.exit_code:
        return f"The program ended with exit code {result.exit_code}."
    if result.is_output_cut:
        return f"The program printed more than {MAX_OUTPUT_BYTES} bytes."
    return "" if result.output.strip() else "The program printed nothing."


def _describe_missing(reply: ModelReply) -> str:
    if reply.finish is ModelFinish.LENGTH:
        return "The program was cut off: it must be shorter."
    return "The reply had no program between ```python and ```."
