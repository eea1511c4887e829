"""Tags of ours are cut out of any reply and of any stream of it; what a caller may have asked for stays."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.calls import ReplyListener
from reasond_server.context.own_marks import TagCutter
from reasond_server.context.tags import TagKind
from reasond_server.llm.counting.estimates import EstimatingCounter
from reasond_server.llm.model import Finished, Message, ModelFinish, Role, Text
from reasond_server.types import Usage

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
PROMPT = [Message(role=Role.USER, content=f"<question {NONCE}>\nWhat?\n</question {NONCE}>\nThink of it.")]
NAMES = frozenset({"question", "notes", "material", "passage", "continue", "answer"})
PIECES = st.sampled_from([
    "<question>", "</question>", "<notes>", "</notes>", "<continue>", "</continue>", "< Passage >", "</instruction>",
    f"<question {NONCE}>", '<passage segment="1" of="3">', "<", "<not", "notes", "/>", ">", "42", " ", "\n", "What?",
    "the ", " is", "`", "\n```\n", "<b>", "</b>", "<answer>", "</answer>",
])  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=16).map("".join)
OURS = re.compile(r"</?(?:question|notes|material|passage|continue)>|</instruction>")
QUOTES = re.compile(r"[`\"'\u201c\u201d\u2018\u2019~\w,:]")


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=20))
def test_any_chunking_of_a_text_is_cut_the_same(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cutter = TagCutter(lambda: NAMES)
    pieces = [cutter.feed(text[start:end]) for start, end in pairwise(places)]
    assert "".join([*pieces, cutter.feed("", is_end=True)]) == TagCutter(lambda: NAMES).feed(text, is_end=True)


@given(text=TEXTS)
def test_no_tag_of_ours_that_is_not_spoken_of_comes_back_in_a_reply_or_in_its_stream(text: str) -> None:
    listener = ReplyListener(messages=PROMPT, max_tokens=100, temperature=0.0, kinds=(TagKind.ANSWER,))
    shown = [*listener.take(Text(text=text))]
    listener.take(Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=1, output_tokens=1, model_calls=1)))
    rest, reply = listener.close(EstimatingCounter())
    streamed = "".join(each.text for each in (*shown, *rest) if not each.is_thinking)
    for told in (streamed, reply.parsed.text, reply.parsed.content):
        for found in OURS.finditer(told):
            # Only what may be quoted, code, or in the middle of a sentence is left.
            assert QUOTES.search(told[: found.start()])


@given(text=TEXTS)
def test_a_reply_to_a_prompt_without_fences_is_left_as_it_is(text: str) -> None:
    asked = [Message(role=Role.USER, content="What is a <question>?")]
    listener = ReplyListener(messages=asked, max_tokens=100, temperature=0.0, kinds=())
    shown = [*listener.take(Text(text=text))]
    listener.take(Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=1, output_tokens=1, model_calls=1)))
    rest, _ = listener.close(EstimatingCounter())
    assert "".join(each.text for each in (*shown, *rest)) == text
