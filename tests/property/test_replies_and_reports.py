"""The rule of the dialects: nothing unread is an answer, nothing paid counts less, each departure is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.calls import ReplyListener
from reasond_server.context.final_replies import read_final_reply
from reasond_server.context.tags import TagKind
from reasond_server.dialects.reasoning_marks import FIELDS
from reasond_server.dialects.stream_forms import FinishKind, read_finish
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import Finished, Message, Role
from reasond_server.llm.openai.answer import AnswerReader
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.chat import ChatCompletions
from reasond_server.llm.openai.protocol import UpstreamReportError
from reasond_server.llm.openai.usage_reports import settle_usage
from reasond_server.types import FinishReason, Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = BackendOptions(name="main", model="m-1", base_url="http://127.0.0.1:1/v1", api_key="")
QUESTION = [Message(role=Role.USER, content="How long does it take? " * 40)]
ANSWERED = {FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED}
THOUGHT = "zzthought <answer>zzwrong</answer> zzend"
ANSWER = "It takes seventeen minutes."
MARKS = st.sampled_from(
    [
        "<think>{}</think>",
        "<thinking>{}</thinking>\n",
        "[THINK]{}[/THINK]",
        "<thought>{}</thought>",
        "{}\n</think>\n",
        "{}</thinking>",
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|START_THINKING|>{}<|END_THINKING|>",
    ]
)
ENDS = st.sampled_from(["", "<|im_end|>", "</s>", "<|eot_id|>", "<|return|>"])
STOPS = st.sampled_from(["stop", "end_turn", "STOP", "eos", "COMPLETE"])
OTHERS = st.one_of(
    st.sampled_from(["length", "MAX_TOKENS", "content_filter", "SAFETY", "pause_turn", "OTHER", "tool_calls"]),
    st.text(alphabet="abcdefgh_", min_size=3, max_size=20),
    st.integers(1, 9),
)
TOKENS = st.integers(1, 900)


@dataclass(frozen=True)
class Outcome:
    """What came of a stream."""

    finish_reason: FinishReason
    answer: str
    warnings: Sequence[str]
    usage: Usage


def chunk(delta: dict[str, Any], finish: object = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def read(chunks: Sequence[dict[str, Any]], cuts: Sequence[int] = ()) -> Outcome | None:
    """Return what comes of a stream whose bytes are cut at `cuts`; None if the server reported an error."""
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks) + b"data: [DONE]\n\n"
    places = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    reader = AnswerReader(decoder=ChatCompletions().build_decoder(OPTIONS), stop=(), options=OPTIONS)
    listener = ReplyListener(messages=QUESTION, max_tokens=100_000, temperature=0.0, kinds=(TagKind.ANSWER,))
    events = [event for start, end in pairwise(places) for event in reader.take(body[start:end])]
    events += [*reader.end(), *reader.flush()]
    if isinstance(reader.fault, UpstreamReportError):
        return None
    ending = reader.find_end()
    assert reader.fault is None
    assert ending.reason is not None
    usage, doubts = settle_usage(ending.usage, request=listener.request, written=reader.written, counter=ByteCounter())
    warnings = (*ending.warnings, *doubts)
    for event in (*events, Finished(reason=ending.reason, usage=usage, warnings=warnings)):
        listener.take(event)
    _, reply = listener.close(ByteCounter())
    final = read_final_reply(reply, is_program=False)
    return Outcome(finish_reason=final.finish_reason, answer=final.answer, warnings=warnings, usage=usage)


@given(mark=MARKS, end=ENDS, finish=STOPS, cuts=st.lists(st.integers(0, 10_000), max_size=8), is_tagged=st.booleans())
def test_reasoning_in_marks_is_no_part_of_an_answer(
    mark: str, end: str, finish: str, cuts: list[int], *, is_tagged: bool
) -> None:
    text = mark.format(THOUGHT) + (f"<answer>{ANSWER}</answer>" if is_tagged else ANSWER) + end
    found = read([chunk({"content": text}), chunk({}, finish)], cuts)
    assert found is not None
    assert (found.answer, found.finish_reason in ANSWERED) == (ANSWER, True)


@given(name=st.sampled_from(FIELDS), finish=STOPS, has_answer=st.booleans())
def test_reasoning_in_members_is_no_part_of_an_answer(name: str, finish: str, *, has_answer: bool) -> None:
    answer = [chunk({"content": ANSWER})] if has_answer else []
    found = read([chunk({name: THOUGHT}), *answer, chunk({}, finish)])
    assert found is not None
    assert found.answer == (ANSWER if has_answer else "")
    assert (found.finish_reason in ANSWERED) == has_answer


@given(
    reasons=st.lists(OTHERS, min_size=1, max_size=3),
    before=st.lists(STOPS, max_size=1),
    after=st.lists(STOPS, max_size=1),
)
def test_an_answer_that_did_not_end_well_is_no_answer_and_an_unknown_end_is_told(
    reasons: list[object], before: list[str], after: list[str]
) -> None:
    told = [*before, *reasons, *after]
    found = read([chunk({"content": "There are two cases: where"}), *(chunk({}, each) for each in told)])
    kinds = [kind for each in told if (kind := read_finish(each)) is not None]
    if any(kind is FinishKind.FAILED for kind, _ in kinds):
        assert found is None
        return
    assert found is not None
    is_well = all(kind is FinishKind.STOP for kind, _ in kinds)
    assert (found.finish_reason in ANSWERED) == is_well
    for _, warning in kinds:
        assert not warning or warning in found.warnings


@given(prompt=TOKENS, output=TOKENS, reasoning=TOKENS, cached=TOKENS, form=st.integers(0, 6))
def test_what_was_paid_is_charged_in_every_form_of_a_report(
    prompt: int, output: int, reasoning: int, cached: int, form: int
) -> None:
    spent = {"prompt_tokens": prompt + cached, "completion_tokens": output + reasoning}
    total = prompt + cached + output + reasoning
    within = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    forms: list[dict[str, Any]] = [
        spent | {"total_tokens": total},
        spent | {"total_tokens": total} | within,
        {"prompt_tokens": prompt + cached, "completion_tokens": output, "total_tokens": total} | within,
        {"prompt_tokens": prompt + cached, "completion_tokens": output, "total_tokens": total},
        {"input_tokens": prompt, "cache_read_input_tokens": cached, "output_tokens": output + reasoning},
        {name: str(number) for name, number in spent.items()},
        {"promptTokenCount": prompt + cached, "candidatesTokenCount": output, "thoughtsTokenCount": reasoning}
        | {"totalTokenCount": total},
    ]
    found = read([chunk({"content": ANSWER}), chunk({}, "stop"), {"choices": [], "usage": forms[form]}])
    assert found is not None
    assert found.usage.total_tokens >= total
    assert found.usage.input_tokens >= prompt + cached


@given(prompt=TOKENS, output=TOKENS, total=st.integers(1, 3000), reasoning=st.integers(0, 900))
def test_a_report_is_charged_whole_and_told_where_it_is_not_taken_as_it_is(
    prompt: int, output: int, total: int, reasoning: int
) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    report = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total} | details
    found = read([chunk({"content": ANSWER}), chunk({}, "stop"), {"choices": [], "usage": report}])
    assert found is not None
    assert found.usage.total_tokens >= max(prompt + output, total)
    if found.usage.source is not UsageSource.REPORTED:
        assert found.warnings
