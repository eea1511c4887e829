"""Trials of answers: votes, answers in untagged replies, judgements, schemas, questions and programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reasond import ReasondError, TraceView
from tests.reports.model_server import MARK, Said, say_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond.v1.execution_pb2 import Reasoning
    from tests.reports.model_server import Talk
    from tests.reports.rows import Row
    from tests.reports.site import Site

_QUERY = "What is the result?"


async def _ask(
    site: Site, row: Row, says: Sequence[str | Said], *, strategy: str, config: Mapping[str, Any], **more: Any
) -> tuple[Talk, Reasoning]:
    talk = site.models.begin(row.id, [say_text(each) if isinstance(each, str) else each for each in says])
    result = await site.client.reason(
        f"{MARK.format(row=row.id)} {_QUERY}",
        # Some calls of a strategy do not show the question.
        system=MARK.format(row=row.id),
        strategy=strategy,
        config=config,
        trace_view=TraceView.TRACE_VIEW_FULL,
        **more,
    )
    return talk, result


async def _count_votes(site: Site, row: Row, says: Sequence[str]) -> tuple[int, str]:
    """Return the votes of the winner of samples, and all votes in words."""
    _, result = await _ask(site, row, says, strategy="self_consistency", config={"samples": len(says)})
    votes = [(each.answer, each.votes) for each in result.metrics.self_consistency.votes]
    return max([count for _, count in votes], default=0), f"{votes} {list(result.warnings)}"


async def try_vote(site: Site, row: Row) -> list[str]:
    """Let three samples answer something else, `a` and `b`: `a` and `b` are one answer, or they are two."""
    says = [f"<answer>{text}</answer>" for text in ("none of all these", row.input["a"], row.input["b"])]
    most, told = await _count_votes(site, row, says)
    return [] if most == (2 if row.right["together"] else 1) else [told]


async def try_extract(site: Site, row: Row) -> list[str]:
    """Let an untagged reply vote beside a tagged one with the right answer."""
    says = [
        "<answer>none of all these</answer>",
        row.input["text"],
        f"<answer>{row.right['answer']}</answer>",
    ]
    most, told = await _count_votes(site, row, says)
    return [] if most == 2 else [told]


async def try_judge(site: Site, row: Row) -> list[str]:
    """Let a judge write `judgement` about a solution; `score` is what it gives, null where nobody could tell."""
    says = ["First way.<answer>41</answer>", "Other way.<answer>42</answer>", row.input["judgement"]]
    _, result = await _ask(site, row, says, strategy="best_of_n", config={"samples": 2})
    scores = [
        step.stage.score for step in result.trace if step.stage.stage == "judgement" and step.stage.HasField("score")
    ]
    wanted = row.right["score"]
    if wanted is None:
        is_told = any("score" in each or "judge" in each.lower() for each in result.warnings)
        return [] if is_told else [f"scores {scores}, warnings {list(result.warnings)}"]
    is_right = len(scores) == 2 and all(abs(score - wanted) < 1e-9 for score in scores)
    return [] if is_right else [f"scores {scores}, warnings {list(result.warnings)}"]


async def try_schema(site: Site, row: Row) -> list[str]:
    """Let a reply answer under a schema; one call must be enough, or one more, `then`, for a server that enforces."""
    told = row.input
    says = [say_text(each) if isinstance(each, str) else Said(**each) for each in told.get("then", ())]
    more = {"model": "enforcing"} if says else {}
    strategy, config = told.get("strategy", "chain_of_thought"), told.get("config", {})
    texts = told["text"] if isinstance(told["text"], list) else [told["text"]]
    try:
        talk, result = await _ask(
            site,
            row,
            [*map(say_text, texts), *says],
            strategy=strategy,
            config=config,
            answer_schema=told["schema"],
            **more,
        )
    except ReasondError as error:
        return [str(error)]
    faults = []
    bodies = [json.loads(asked) for asked in talk.asked]
    enforced = [each["response_format"]["json_schema"]["schema"] for each in bodies if "response_format" in each]
    wanted = [told["schema"]] if told.get("enforced", bool(says)) else []
    if enforced != wanted:
        faults.append(f"schemas were enforced in {enforced}")
    faults += [
        f"no warning names {word!r}: {list(result.warnings)}"
        for word in row.right.get("warnings", ())
        if not any(word in each for each in result.warnings)
    ]
    if not result.answer_json or json.loads(result.answer_json) != row.right["answer_json"]:
        faults.append(f"answer_json is {result.answer_json!r}")
    if len(talk.asked) != row.right.get("requests", 1):
        faults.append(f"{len(talk.asked)} calls of the model")
    return faults


async def try_questions(site: Site, row: Row) -> list[str]:
    """Let a reply name the questions that verify a draft; so many are checked."""
    says = ["It is so.<answer>42</answer>", row.input["text"], "<answer>Yes</answer>"]
    _, result = await _ask(site, row, says, strategy="chain_of_verification", config={"max_questions": 8})
    metrics = result.metrics.chain_of_verification
    wanted = row.right["questions"]
    return [] if metrics.questions == wanted else [f"{metrics.questions} questions, {list(result.warnings)}"]


async def try_program(site: Site, row: Row) -> list[str]:
    """Let a reply hold a program; what it prints is the answer, after one call."""
    config = {"max_attempts": 1, "max_program_s": 60.0}
    _, result = await _ask(site, row, [row.input["text"]], strategy="program_of_thought", config=config)
    return [] if result.answer == row.right["answer"] else [f"{result.answer!r}, {list(result.warnings)}"]
