"""Whatever a model replies, nothing of ours is in its answer."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from reasond_server.context.answers import _LAST_HEADING, _MARK, _find_announcements, is_placeholder
from reasond_server.context.calls import ReplyListener
from reasond_server.context.final_replies import read_final_reply
from reasond_server.context.samples import read_sample
from reasond_server.context.tags import TagKind, restore
from reasond_server.llm.counting.estimates import EstimatingCounter
from reasond_server.llm.model import Finished, Message, ModelFinish, Role, Text
from reasond_server.types import Usage

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
PROMPT = [Message(role=Role.USER, content=f"<question {NONCE}>\nWhat?\n</question {NONCE}>")]
PIECES = st.sampled_from([
    "<answer>", "</answer>", "<Answer>", f"<answer {NONCE}>", f"</answer {NONCE}>", f"<question {NONCE}>",
    f"</question {NONCE}>", f"</notes {NONCE}>", f'<passage {NONCE} name="a">', NONCE, "the final answer", ">",
    "Answer: ", "The answer is ", "\\boxed{", "}", "42", ". ", "\n", "\n\n", "```\n", " ", "So ", "&lt;answer>", "**",
])  # fmt: skip
REPLIES = st.lists(PIECES, max_size=14).map("".join)
OURS = re.compile(rf"{NONCE}|\A\s*</?answer>|</?answer>\s*\Z", re.IGNORECASE)


@example(text="<answer>Answer: <Answer>. ")
@example(text="<answer>the final answer<answer>```\n")
@example(text="<Answer>. <Answer><Answer>}")
@given(text=REPLIES)
def test_nothing_of_ours_is_in_an_answer(text: str) -> None:
    listener = ReplyListener(messages=PROMPT, max_tokens=100, temperature=0.0, kinds=(TagKind.ANSWER,))
    listener.take(Text(text=text))
    listener.take(Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=1, output_tokens=1, model_calls=1)))
    _, reply = listener.close(EstimatingCounter())
    final = read_final_reply(reply, is_program=False)
    for answer in map(restore, (final.answer, read_sample(reply, is_program=False).answer)):
        assert not OURS.search(answer)
        assert not is_placeholder(answer)
    assert final.answer or not final.is_answered


ANNOUNCED = st.lists(
    st.sampled_from([
        "\n", "\n\n", " ", "# ", "## ", "**", "a:", "A: ", "Answer", "the answer is", "final answer", "FINAL ANSWER:\n",
        "YANIT: 5", "yan\u0131t:", "答案是", "故选 B", "选\nC", "5", "$", "x", " = ", "**Result**", "\t", "答:",
        "LÖSUNG:",         "\u0130", "ANSWER ->", "\r\n", "\u2028", "ответ -", "ĐÁP ÁN:",
    ]),
    max_size=10,
).map("".join)  # fmt: skip


@given(text=ANNOUNCED)
def test_a_search_of_lines_finds_what_a_search_of_the_whole_text_finds(text: str) -> None:
    announced = {found.span() for found in _MARK.finditer(text)}
    begun = {start for start, _ in announced}
    headings = {found.span() for found in _LAST_HEADING.finditer(text) if found.start() not in begun}
    assert {found.span() for found in _find_announcements(text)} == announced | headings
