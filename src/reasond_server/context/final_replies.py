"""Final answers: the words that ask a model for one, and the reading of its reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.context.answers import is_placeholder, split_answer
from reasond_server.context.replies import ParsedReply, TagParser
from reasond_server.context.tags import TagKind, restore
from reasond_server.dialects.answer_marks import EXAMPLE_ANSWER, EXAMPLE_FUNCTION
from reasond_server.dialects.code_blocks import find_program
from reasond_server.llm.model import ModelFinish
from reasond_server.types import FinishReason
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.context.calls import ModelReply
    from reasond_server.llm.metered_model import CutCall


EXAMPLE: Final = f"for example: <answer>{EXAMPLE_ANSWER}</answer>"
"""Ends what asks for an answer."""

EXAMPLE_PROGRAM: Final = (
    f"for example:\n<answer>\n```python\ndef {EXAMPLE_FUNCTION}(birds):\n"
    '    return birds.count("heron")\n```\n</answer>'
)
"""Stands in the place of `EXAMPLE` where the question asks for a program.

With `print(739164)` a small model answered requests for functions with `print(20)` or a copy.
"""

STEPS_FIRST: Final = (
    "Work it out step by step first, with the calculation and the result of each step. Only then end with the final "
    f"answer alone between tags, a unit only if the question asks for one, {EXAMPLE}"
)
"""Asks for the steps first and for the answer at the end; it stands behind all texts.

In front of the question, and with "as short as it can be", it made able models skip the steps; asked to "write the
steps down", they named the steps without taking them; a placeholder between the tags was copied. "Let's think
step by step. At the end write the final answer" made at least 28 of 50 replies of a small model a bare answer, "First
set up what is known and what is asked, then calculate it step by step" 25.
"""

PROGRAM_LAST: Final = (
    "Work out first how it must behave in each case that the question names. Only then end with the whole program, "
    f"alone between tags, {EXAMPLE_PROGRAM}"
)
"""Stands in the place of `STEPS_FIRST` where the question asks for a program.

Asked for "the result of each step" and shown a number between the tags, a small model ran an example in its head and
answered with what the program would return. Told "between the tags <answer> and </answer>" it repeated that, and ended.
"""


def fit_instruction(instruction: str, *, is_program: bool) -> str:
    """Return an instruction, with `PROGRAM_LAST` in the place of `STEPS_FIRST` if the question asks for a program."""
    return instruction.replace(STEPS_FIRST, PROGRAM_LAST) if is_program else instruction


@value
class FinalReply:
    """The thought, the answer and the finish reason in a reply."""

    thought: str
    answer: str
    finish_reason: FinishReason

    @property
    def is_answered(self) -> bool:
        """Whether the reply has a whole answer."""
        reason = self.finish_reason
        return reason is FinishReason.ANSWERED or reason is FinishReason.ANSWERED_UNTAGGED


def split_untagged(text: str, *, is_program: bool) -> tuple[str, str]:
    """Return the reasoning and the answer of a whole reply without a tagged answer; see `answers`.

    Where the question asks for a program, a text that holds one is the answer, whatever it says of results.
    """
    holds_program = is_program and find_program(text) and not is_placeholder(text)
    return ("", text) if holds_program else split_answer(text)


def read_final_reply(reply: ModelReply, *, is_program: bool) -> FinalReply:
    """Return the thought, the answer and the finish reason of a reply; `is_program`: its question asks for one."""
    parsed = reply.parsed
    before, content = parsed.text.strip(), parsed.content.strip()
    thinking = parsed.thinking.strip()
    thought = f"{thinking}\n\n{before}" if thinking and before else thinking or before
    if reply.finish is ModelFinish.CONTENT_FILTER:
        return FinalReply(thought=thought, answer=content, finish_reason=FinishReason.CONTENT_FILTERED)
    if content:
        whole = FinishReason.ANSWERED if parsed.is_closed else FinishReason.TRUNCATED
        return FinalReply(thought=thought, answer=content, finish_reason=whole)
    if reply.finish is ModelFinish.STOP and before:
        prose, answer = split_untagged(before, is_program=is_program)
        if answer:
            thought = "\n\n".join(part for part in (thinking, prose) if part)
            return FinalReply(thought=thought, answer=answer, finish_reason=FinishReason.ANSWERED_UNTAGGED)
    return FinalReply(thought=thought, answer="", finish_reason=FinishReason.TRUNCATED)


def parse_cut_call(cut: CutCall, *, kinds: Sequence[TagKind]) -> ParsedReply:
    """Return what had come of a call that was cut off, as a reply with tags of `kinds`."""
    parser = TagParser(kinds=kinds)
    parser.feed_reasoning(cut.thinking)
    parser.feed(cut.text)
    parser.close(is_stop=False)
    return parser.result


def read_cut_call(cut: CutCall) -> FinalReply:
    """Return the thought and the answer, as far as they had come, of a call that was cut off."""
    parsed = parse_cut_call(cut, kinds=tuple(TagKind))
    is_answer = parsed.kind is TagKind.ANSWER
    parts = (parsed.thinking, parsed.text, "" if is_answer else parsed.content)
    return FinalReply(
        thought=restore("\n\n".join(part.strip() for part in parts if part.strip())),
        answer=restore(parsed.content.strip()) if is_answer else "",
        finish_reason=FinishReason.TRUNCATED,
    )


def describe_silence(reply: ModelReply, final: FinalReply) -> Sequence[str]:
    """Return a warning that says why a reply has nothing to read; none if it has a text or an answer."""
    if reply.is_only_hidden_reasoning:
        warning = (
            f"Hidden reasoning took {reply.reasoning_tokens} of the {reply.usage.output_tokens} tokens that the model "
            "wrote and left none for the answer: raise max_tokens, or lower the model's reasoning effort."
        )
        return (warning,)
    if final.answer or reply.finish is not ModelFinish.STOP:
        return () if final.answer or final.thought else ("The model wrote nothing.",)
    if reply.parsed.kind is TagKind.ANSWER:
        return ("Between its answer tags the model wrote nothing, or only repeated the prompt: there is no answer.",)
    if reply.is_repetition or reply.parsed.text.strip():
        return ("All that the model wrote repeats the prompt: there is no answer.",)
    return () if final.thought else ("The model wrote nothing.",)
