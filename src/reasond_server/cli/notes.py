"""What came of a step, in words for one line. Nothing is printed here, and every text is made harmless."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final

from reasond_server.cli.terminal import columns, one_line

if TYPE_CHECKING:
    from reasond import BoundedContextStep, Iteration, ReactStep, Sample, ToolResult, TreeStep

_ANSWER_WIDTH: Final = 48
_LEAST_SHARE: Final = 12
_MOST_PARSED: Final = 10_000


def note_of(step: Iteration, *, votes: int, width: int) -> str:
    """Return what came of `step` on one line of at most `width` columns; `votes` are those of its answer so far."""
    kind = step.WhichOneof("detail")
    if kind == "react":
        text = _cycle(step.react, width)
    elif kind == "tree":
        text = _node(step.tree)
    elif kind == "sample":
        text = _sample(step.sample, votes)
    elif kind == "bounded_context":
        parts = (carried(step.bounded_context), _first_line(step.bounded_context.text))
        text = "; ".join(part for part in parts if part)
    else:
        text = _first_line(step.thought.text)
    mark = "answer found; " if step.answer_found else ""
    return one_line(f"{mark}{text}".rstrip("; "), width)


def carried(window: BoundedContextStep) -> str:
    """Return how a window's progress was compressed, and what was lost; nothing where it made no carryover."""
    if not window.HasField("carryover_report"):
        return ""
    report = window.carryover_report
    text = f"notes {report.before_tokens:,}->{report.after_tokens:,}"
    if report.dropped:
        text += f", dropped {', '.join(f'{one.tokens:,} of {one_line(one.part, 12)}' for one in report.dropped[:4])}"
    return f"{text}, fell back: {one_line(report.fallback_reason, 60)}" if report.fallback_reason else text


def _cycle(cycle: ReactStep, width: int) -> str:
    """Return thought, first action and its observation; each has at least its share of the line."""
    thought = _first_line(cycle.thought)
    if not cycle.actions:
        return thought
    call, results = cycle.actions[0], cycle.observations[:1]
    more = f" (+{len(cycle.actions) - 1} more)" if len(cycle.actions) > 1 else ""
    share = max((width - columns(more)) // 3, _LEAST_SHARE)
    seen = "".join(f" -> {'error: ' if one.is_error else ''}{_result(one, share)}" for one in results)
    action = one_line(f"{call.tool}({call.arguments_json})", share)
    room = max(width - columns(action) - columns(seen) - columns(more) - len(" | "), _LEAST_SHARE)
    return f"{one_line(thought, room)} | {action}{seen}{more}" if thought else f"{action}{seen}{more}"


def _result(result: ToolResult, width: int) -> str:
    """Return a result: a text without the quotes of JSON, of an object the `result` that it names, else all of it."""
    text = result.result_json
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text) if len(text) <= _MOST_PARSED else None
        value = value.get("result", value) if isinstance(value, dict) else value
        text = str(value) if isinstance(value, str | int | float) else text
    return one_line(text, width)


def _node(node: TreeStep) -> str:
    """Return depth, score and fate of a node, then its answer or its thought."""
    fate = ", pruned" if node.is_pruned else ""
    text = f"= {node.answer}" if node.answer else _first_line(node.thought)
    return f"depth {node.depth}, score {node.score:.2f}{fate}; {text}"


def _sample(sample: Sample, votes: int) -> str:
    """Return the answer of a sample and how many gave the same so far."""
    if not sample.normalized_answer:
        return f"no answer; {_first_line(sample.text)}"
    return f"{one_line(sample.answer, _ANSWER_WIDTH)} ({votes} vote{'' if votes == 1 else 's'})"


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")
