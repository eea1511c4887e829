"""Shows a run to a person: a line for each step, how far it has come, its answer and its end."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from reasond_server.base.plugins import list_built_in
from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.show.figures import describe_end, get_finish_reason, has_own_words, summarize
from reasond_server.cli.show.live import MOST_LINES, Display, LiveConsole, ShownProgress, count_to, render_bar
from reasond_server.cli.terminal import (
    count_columns,
    fit_line,
    format_seconds,
    get_enum_name,
    get_seconds,
    sanitize,
    write,
)
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.types import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from reasond import (
        BoundedContextStep,
        ExecutionStarted,
        Iteration,
        ReactStep,
        Reasoning,
        ReasonIterationsResponse,
        Sample,
        StageStep,
        ToolResult,
        TreeStep,
    )
    from reasond_server.strategies.strategy import StrategyConfig

_ENDINGS: Final[Mapping[str, tuple[ExitCode, str]]] = MappingProxyType(
    {
        "MAX_ITERATIONS": (ExitCode.OK, "the iterations ran out; the answer is what the last one was made to give"),
        "BUDGET_EXHAUSTED": (
            ExitCode.LIMIT,
            "the budget or the deadline was reached first; the answer, if any, is what there was",
        ),
        "TRUNCATED": (
            ExitCode.LIMIT,
            "the model was cut off by its length limit, or by the size of its windows; allow it more tokens",
        ),
        "CONTENT_FILTERED": (ExitCode.MODEL, "the model's provider withheld the text"),
        "CANCELLED": (ExitCode.INTERRUPTED, "the run was cancelled; the answer, if any, is what there was"),
    }
)
_NOTE_WIDTH = 120
_INDENT = "    "
_NOTHING_NEW = "nothing new"
_SOURCES = MappingProxyType(
    {
        "REQUEST": "as asked",
        "AGENT": "chosen by the agent",
        "SYSTEM": "the default of this server",
        "AUTO": "chosen by the rule of this server",
    }
)
_CALLS: Final = MappingProxyType({"chain_of_thought": 1, "plan_and_solve": 2})
_SAMPLE_WIDTH: Final = 48
_LEAST_SHARE: Final = 12
_MOST_PARSED: Final = 10_000
_NUMBER: Final = re.compile(r"\d+")
_MARKED: Final = re.compile(r"[-*\u2022>#\s]+")
_FEWEST_SEGMENTS: Final = 4
# Any text of the length of a nonce: only its tokens count.
_NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"
_MEASURED_STEPS: Final = 8
_FEWEST_MEASURED: Final = 2


class RunDisplay(Display):
    """Shows the events of one run; `query` is the question, if it is known."""

    def __init__(self, live: LiveConsole, *, query: str = "", is_kept: bool = True) -> None:
        super().__init__(live, is_kept=is_kept)
        self._query = query
        self._lines = RunLines(is_ascii=live.is_ascii)
        self._progress = RunProgress()
        self._hint = ""

    def show(self, event: ReasonIterationsResponse) -> None:
        """Show `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "started":
            self._live.print_head(self._lines.start(event.started))
            self._progress = RunProgress(strategy=self._lines.strategy, config=self._lines.config)
            self._live.say_now("thinking")
        elif kind == "delta":
            self._live.add_written(event.delta.text)
        elif kind == "iteration":
            self._show_step(event.iteration)
        elif kind == "completed" and self._live.is_folding:
            self._fold(event)

    def print_answer(self, result: Reasoning) -> None:
        """Print the answer of a run that a person follows."""
        self._live.print_answer(result.answer)

    def print_figures(self, result: Reasoning) -> None:
        """Print what the run did and cost, and its warnings."""
        remarks = ((f"note: {sanitize(warning)}", "yellow") for warning in result.warnings)
        self.print_end([*((line, "dim") for line in summarize(result)), *remarks])

    def _show_step(self, step: Iteration) -> None:
        if hint := find_carryover_hint(self._lines.config, step, self._query):
            self._hint = hint
            self._live.print_remark(f"note: {hint}")
        style = "green" if step.answer_found else ""
        if self._live.is_folding:
            self._live.show_progress(self._progress.take(step))
            if line := self._lines.tell(step, width=self._live.width or 0):
                self._live.print_step(line, style=style)
        else:
            for line in self._lines.format_step(step, width=self._live.width):
                self._live.print(line, style=style)
        self._live.say_now("thinking")

    def _fold(self, event: ReasonIterationsResponse) -> None:
        """Write the end, and keep the steps if they fit beside it."""
        result, news = event.completed, self._lines.news
        is_seen_whole = news.windows == result.metrics.bounded_context.reading_iterations
        figures = describe_end(result, news=news.count if is_seen_whole else None)
        # How a run ended without an answer is a line of its own, which the command writes.
        most = MOST_LINES - has_own_words(result)
        remarks = [*([self._hint] if self._hint else []), *result.warnings]
        self.fold(figures, remarks, execution_id=event.execution_id, most=most)


class RunOutput(ABC):
    """Follows the events of a run and remembers its end."""

    wants_deltas = False

    def __init__(self) -> None:
        self.result: Reasoning | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for the finish reason of the run."""
        if self.result is None:
            return ExitCode.FAILURE
        return _describe_ending(self.result)[0]

    @property
    def has_result(self) -> bool:
        """Whether the run has a result with content; True while its end is not known."""
        return self.result is None or self.result.metrics.usage.model_calls > 0

    def display(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which events are followed."""
        return contextlib.nullcontext()

    def follow(self, events: Iterable[ReasonIterationsResponse]) -> None:
        """Show `events` as they come."""
        for event in events:
            self.show(event)
            if event.WhichOneof("event") == "completed":
                self.result = event.completed

    @abstractmethod
    def show(self, event: ReasonIterationsResponse) -> None:
        """Show one event."""

    def finish(self) -> None:  # noqa: B027 - not every viewer has something left to show
        """Show the end of the run, if it was received."""


class HumanOutput(RunOutput):
    """For people: writes steps and figures to `choose_stream()`, and the answer to stdout."""

    def __init__(self, live: LiveConsole, query: str = "") -> None:
        super().__init__()
        self._live = live
        self._display = RunDisplay(live, query=query)
        self.wants_deltas = live.is_live

    def display(self) -> contextlib.AbstractContextManager[None]:
        """See the base class."""
        return self._live.open()

    def show(self, event: ReasonIterationsResponse) -> None:
        """See the base class."""
        self._display.show(event)

    def finish(self) -> None:
        """Show the answer, the figures, and how the run ended."""
        if (result := self.result) is None:
            return
        if sys.stdout.isatty():
            self._display.print_answer(result)
        elif result.answer:
            write(result.answer)
        self._display.print_figures(result)
        if ending := _describe_ending(result)[1]:
            warn(ending)


def _describe_ending(result: Reasoning) -> tuple[ExitCode, str]:
    """Return the exit code for the finish reason of a run, and the text of a warning."""
    if result.metrics.self_consistency.is_abstained:
        return ExitCode.LIMIT, "no answer had as many votes as min_agreement asks for, so none is given"
    if result.metrics.best_of_n.is_abstained:
        return ExitCode.LIMIT, "no answer had the score that min_score asks for, so none is given"
    return _ENDINGS.get(get_finish_reason(result), (ExitCode.OK, ""))


@dataclass(slots=True)
class ReadingNews:
    """Keeps the lines that were noted so far; `count` is how many of the windows noted something new."""

    count: int = 0
    windows: int = 0
    _known: set[str] = field(default_factory=set)

    def find(self, window: BoundedContextStep) -> str:
        """Return the last line of the notes of `window` that is new; empty if none is."""
        self.windows += 1
        found = ""
        for each in window.carryover.splitlines():
            line = _MARKED.sub(" ", each).strip()
            shape = _generalize(line, window)
            # A line that ends with a colon is the label of a part of the notes.
            if line and shape not in self._known and not line.endswith(":"):
                found = line
            self._known.add(shape)
        self.count += bool(found)
        return found


@dataclass(slots=True, kw_only=True)
class RunLines:
    """Keeps the state of a run that the line of the next step needs."""

    strategy: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    readings: int = 0
    notes: frozenset[str] = frozenset()
    votes: Counter[str] = field(default_factory=Counter)
    news: ReadingNews = field(default_factory=ReadingNews)
    is_ascii: bool = False

    def start(self, started: ExecutionStarted) -> str:
        """Store the configuration of the run, and return the line that describes it."""
        self.strategy = started.strategy
        self.config = json.loads(started.config_json or "{}")
        source = get_enum_name(started, "strategy_source")
        window = self.config.get("chunk_size")
        size = f", windows of {window:,} tokens" if isinstance(window, int) else ""
        chosen = _SOURCES.get(source, source.lower())
        return f"{sanitize(started.strategy)} ({chosen}), model {sanitize(started.model)}{size}"

    def format_step(self, step: Iteration, *, width: int | None = None) -> list[str]:
        """Return the line of `step`: number and total, window, tokens, time, outcome.

        The outcome is put on its own line if both do not fit `width` columns (None: no limit), and is omitted if
        it is empty.
        """
        usage = step.usage
        tokens = f"in {usage.input_tokens:>6,}  out {usage.output_tokens:>5,}"
        parts = [
            f"{self._name_place(step):<12}",
            *self._describe_window(step),
            tokens,
            f"{format_seconds(get_seconds(step.elapsed)):>7}",
        ]
        figures, note = "  ".join(parts), self._describe_outcome(step, width)
        if not note:
            return [figures]
        if width is None or count_columns(figures) + 2 + count_columns(note) <= width:
            return [f"{figures}  {note}"]
        if note == _NOTHING_NEW:
            return [figures]
        return [figures, _INDENT + fit_line(note, max(width - len(_INDENT), 1))]

    def tell(self, step: Iteration, *, width: int) -> str:
        """Return what `step` brought, without figures, in at most `width` columns; empty if it brought nothing new."""
        place = self._name_place(step)
        if step.bounded_context.HasField("reading") and not step.answer_found:
            found = self.news.find(step.bounded_context)
            return fit_line(f"segment {step.bounded_context.reading.segment}: {found}", width) if found else ""
        note = self._describe_outcome(step, width)
        if step.WhichOneof("detail") == "sample":
            # The samples of a wave are made at the same time: each has figures of its own.
            tokens = step.usage.input_tokens + step.usage.output_tokens
            place = f"{place}, {tokens:,} tokens, {format_seconds(get_seconds(step.elapsed))}"
        return fit_line(f"{place}: {note}" if note else place, width)

    def _name_place(self, step: Iteration) -> str:
        """Return the number of the step and the total; reading steps are counted separately."""
        reading = step.bounded_context.reading
        if step.bounded_context.HasField("reading"):
            self.readings += 1
            return f"read {reading.segment}/{reading.segment_count}"
        number = step.index - self.readings + 1
        if step.WhichOneof("detail") == "tree":
            return f"node {number}"
        word, limit = ("sample", "samples") if step.WhichOneof("detail") == "sample" else ("step", "max_iterations")
        most = self.config.get(limit, _CALLS.get(self.strategy))
        return f"{word} {number}/{most}" if most else f"{word} {number}"

    def _describe_window(self, step: Iteration) -> list[str]:
        """Return the fill level of the window; empty for steps without a window."""
        size = self.config.get("chunk_size")
        if step.WhichOneof("detail") != "bounded_context" or not isinstance(size, int):
            return []
        used = step.bounded_context.window_tokens
        sign = "" if step.bounded_context.is_window_exact else "~"
        return [f"{render_bar(used / size, is_ascii=self.is_ascii)} {sign + format(used, ','):>6}/{size:,}"]

    def _describe_outcome(self, step: Iteration, width: int | None) -> str:
        """Return the outcome of the step, by its kind; for a window that read text, its new note."""
        if step.bounded_context.HasField("reading") and not step.answer_found:
            noted = self._find_new_note(step.bounded_context.carryover)
            return "; ".join(part for part in (describe_carryover(step.bounded_context), noted) if part)
        if step.WhichOneof("detail") == "sample":
            self.votes[step.sample.normalized_answer] += 1
        room = _NOTE_WIDTH if width is None else min(max(width - len(_INDENT), 1), _NOTE_WIDTH)
        return describe_step(step, votes=self.votes[step.sample.normalized_answer], width=room)

    def _find_new_note(self, carryover: str) -> str:
        """Return the last line of `carryover` that the previous carryover did not have."""
        lines = [line.strip() for line in carryover.splitlines() if line.strip()]
        new = [line for line in lines if line not in self.notes]
        self.notes = frozenset(lines)
        return fit_line(f"noted: {new[-1]}", _NOTE_WIDTH) if new else _NOTHING_NEW


def describe_step(step: Iteration, *, votes: int, width: int) -> str:
    """Return the outcome of `step` on one line of at most `width` columns; `votes` counts samples with its answer."""
    kind = step.WhichOneof("detail")
    if kind == "react":
        text = _describe_cycle(step.react, width)
    elif kind == "tree":
        text = _describe_node(step.tree)
    elif kind == "sample":
        text = _describe_sample(step.sample, votes)
    elif kind == "stage":
        text = _describe_stage(step.stage)
    elif kind == "bounded_context":
        parts = (describe_carryover(step.bounded_context), _find_first_line(step.bounded_context.text))
        text = "; ".join(part for part in parts if part)
    else:
        headline = next((each.headline for each in STEPS.kinds.values() if each.wire_tag == kind), "")
        text = _find_first_line(getattr(getattr(step, str(kind)), headline)) if headline else ""
    mark = "answer found; " if step.answer_found else ""
    return fit_line(f"{mark}{text}".rstrip("; "), width)


def describe_carryover(window: BoundedContextStep) -> str:
    """Return how the carryover of a window was compressed, and what was lost; empty if it has no carryover."""
    if not window.HasField("carryover_report"):
        return ""
    report = window.carryover_report
    text = f"notes {report.before_tokens:,}->{report.after_tokens:,}"
    if report.dropped:
        text += f", dropped {', '.join(f'{one.tokens:,} of {fit_line(one.part, 12)}' for one in report.dropped[:4])}"
    return f"{text}, fell back: {fit_line(report.fallback_reason, 60)}" if report.fallback_reason else text


def _describe_cycle(cycle: ReactStep, width: int) -> str:
    """Return thought, first action and its observation; each gets at least its share of the line."""
    thought = _find_first_line(cycle.thought)
    if not cycle.actions:
        return thought
    call, results = cycle.actions[0], cycle.observations[:1]
    more = f" (+{len(cycle.actions) - 1} more)" if len(cycle.actions) > 1 else ""
    share = max((width - count_columns(more)) // 3, _LEAST_SHARE)
    seen = "".join(f" -> {'error: ' if one.is_error else ''}{_format_result(one, share)}" for one in results)
    action = fit_line(f"{call.tool}({call.arguments_json})", share)
    room = max(width - count_columns(action) - count_columns(seen) - count_columns(more) - len(" | "), _LEAST_SHARE)
    return f"{fit_line(thought, room)} | {action}{seen}{more}" if thought else f"{action}{seen}{more}"


def _format_result(result: ToolResult, width: int) -> str:
    """Return a result: a string without JSON quotes, the field `result` of an object, else the whole value."""
    text = result.result_json
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text) if len(text) <= _MOST_PARSED else None
        value = value.get("result", value) if isinstance(value, dict) else value
        text = str(value) if isinstance(value, str | int | float) else text
    return fit_line(text, width)


def _describe_node(node: TreeStep) -> str:
    """Return depth, score and state of a node, then its answer or its thought."""
    fate = ", pruned" if node.is_pruned else ""
    text = f"= {node.answer}" if node.answer else _find_first_line(node.thought)
    return f"depth {node.depth}, score {node.score:.2f}{fate}; {text}"


def _describe_sample(sample: Sample, votes: int) -> str:
    """Return the answer of a sample and how many samples gave the same answer so far."""
    if not sample.normalized_answer:
        return f"no answer; {_find_first_line(sample.text)}"
    return f"{fit_line(sample.answer, _SAMPLE_WIDTH)} ({votes} vote{'' if votes == 1 else 's'})"


def _describe_stage(stage: StageStep) -> str:
    """Return the name and the score of a stage, then its answer or its text."""
    score = f", score {stage.score:.2f}" if stage.HasField("score") else ""
    text = f"= {stage.answer}" if stage.answer else _find_first_line(stage.text)
    return f"{stage.stage}{score}; {text}"


def _find_first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _generalize(line: str, window: BoundedContextStep) -> str:
    """Return `line`; where it counts segments, without its numbers, because it is noted anew in each window."""
    numbers = set(_NUMBER.findall(line))
    is_count = {str(window.reading.segment), str(window.reading.segment_count)} <= numbers
    return _NUMBER.sub("#", line) if is_count else line


def find_carryover_hint(config: Mapping[str, Any], step: Iteration, query: str) -> str:
    """Return which smaller carryover_size would halve the calls that read the text; empty if none does.

    It is told at the first segment alone. `config` is the configuration of the run.
    """
    reading = step.bounded_context.reading
    if reading.segment != 1 or reading.segment_count < _FEWEST_SEGMENTS:
        return ""
    # Imported here: most runs read no text in segments.
    from reasond_server.context.window_plan import WindowLimits, suggest_carryover  # noqa: PLC0415 - see above
    from reasond_server.llm.counting import EstimatingCounter  # noqa: PLC0415 - see above
    from reasond_server.types import CarryoverMode  # noqa: PLC0415 - see above

    try:
        limits = WindowLimits(
            chunk_size=int(config["chunk_size"]),
            carryover_size=int(config["carryover_size"]),
            max_segments=int(config["max_segments"]),
            max_iterations=int(config["max_iterations"]),
            carryover_mode=CarryoverMode(config["carryover_mode"]),
        )
    except (KeyError, TypeError, ValueError):
        # Another strategy of the same kind of steps, or another release.
        return ""
    found = suggest_carryover(
        query=query, limits=limits, counter=EstimatingCounter(), nonce=_NONCE, segments=reading.segment_count
    )
    if found is None:
        return ""
    size, expected = found
    return (
        f"the text is read in {reading.segment_count} calls; with --set carryover_size={size} about {expected} would "
        f"do, with notes of at most {size} tokens in place of {limits.carryover_size}"
    )


def count_most_steps(strategy: str, config: Mapping[str, Any]) -> int | None:
    """Return the most steps of a run, as the built-in strategy says; None where that is not known.

    Those of bounded_context are without the steps that read.
    """
    if not config or strategy not in list_built_in(STRATEGIES.group):
        return None
    kind: type[StrategyConfig] = STRATEGIES.find_installed()[strategy].load().config_type
    with contextlib.suppress(ValidationError):
        # Another release may have other keys.
        return kind.model_validate_json(json.dumps(config)).most_steps
    return None


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """Keeps what was seen of a run."""

    strategy: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    readings: int = 0
    model_calls: int = 0
    spans_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED_STEPS))

    def take(self, step: Iteration) -> ShownProgress | None:
        """Return how far the run has come with `step`; None where that is not known."""
        self.steps = step.index + 1
        self.model_calls += step.usage.model_calls
        if step.bounded_context.HasField("reading"):
            return self._read(step)
        return self._reason()

    def _read(self, step: Iteration) -> ShownProgress:
        """Return the progress of reading; the answer takes one more window than the text."""
        done, count = step.bounded_context.reading.segment, step.bounded_context.reading.segment_count
        self.readings = self.steps
        self.spans_s.append(get_seconds(step.elapsed))
        left_s = None
        if len(self.spans_s) >= _FEWEST_MEASURED:
            left_s = (count + 1 - done) * sum(self.spans_s) / len(self.spans_s)
        return ShownProgress(done=min(done, count), total=count + 1, text=f"read {done:,} of {count:,}", left_s=left_s)

    def _reason(self) -> ShownProgress | None:
        if self.strategy == "tree_of_thought":
            most_calls = self.config.get("max_model_calls")
            return count_to(self.model_calls, most_calls, "model call") if isinstance(most_calls, int) else None
        most, done = count_most_steps(self.strategy, self.config), self.steps - self.readings
        if most is None:
            return None
        if self.readings:
            text = f"all is read; step {done} of at most {most}"
            return ShownProgress(done=self.readings, total=self.readings + 1, text=text)
        return count_to(done, most, "step")
