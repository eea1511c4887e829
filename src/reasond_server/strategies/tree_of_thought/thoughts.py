"""Thoughts as nodes: a model proposes them and judges them, separately or against their siblings.

Replies are parsed leniently, because small models do not always follow the format. A reply has several proposals, each
after a mark `Thought 1:`. `context.scores` reads judgements.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reasond_server.context.answers import find_answer, find_marked_answer, is_placeholder
from reasond_server.context.calls import ModelReply, bound_prompt, stream_reply, take_reply
from reasond_server.context.final_replies import EXAMPLE_PROGRAM
from reasond_server.context.own_marks import settle_reply
from reasond_server.context.replies import parse_reply
from reasond_server.context.scores import read_judgement, read_points
from reasond_server.context.sections import FENCE_TOKENS
from reasond_server.context.tags import TagKind
from reasond_server.dialects.answer_marks import EXAMPLE_ANSWER, EXAMPLE_FUNCTION
from reasond_server.dialects.code_blocks import find_program
from reasond_server.errors.model import ContentFilteredError
from reasond_server.llm.model import ChatModel, Message, ModelFinish, TokenCounter
from reasond_server.search.allowance import Cost
from reasond_server.search.tree import Candidate, Judgement, Node, Proposals, Verdict, compute_content_key
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.strategies.tree_of_thought.prompts import TreePrompts

_MARK = re.compile(
    r"^[ \t]{0,8}[*#>-]{0,4}[ \t]{0,2}(?:thought|way)[ \t]{0,2}#?\d{1,3}[ \t*]{0,4}[:.)-][ \t*]{0,4}",
    re.IGNORECASE | re.MULTILINE,
)
# An example of the prompts is no answer, and no part of a thought.
_COPIED_EXAMPLE = re.compile(
    rf"<answer>\s{{0,8}}{EXAMPLE_ANSWER}\s{{0,8}}</answer>|" + re.escape(EXAMPLE_PROGRAM.partition("\n")[2])
)
_NUMBER_MARK = re.compile(r"^[ \t]{0,3}[*]{0,2}(\d{1,3})[.):][*]{0,2}[ \t]+", re.MULTILINE)


@value
class TreeThought:
    """The content of a node; `answer` is the final answer of a solution."""

    text: str
    answer: str = ""


@value
class ThoughtCalls:
    """Makes the model calls of a search over thoughts.

    `thought_tokens` is the most tokens of one thought, one judgement or the answer. `counter` must not learn while the
    search runs. `are_tokens_bounded` is whether costs are needed in tokens, which requires counting.
    """

    model: ChatModel
    prompts: TreePrompts
    counter: TokenCounter
    thought_tokens: int
    temperature: float
    are_tokens_bounded: bool

    async def make(self, messages: Sequence[Message], *, max_tokens: int, kinds: Sequence[TagKind]) -> ModelReply:
        """Make one call and return the whole reply.

        Raises:
            ContentFilteredError: the provider withheld text.
            ReasondError: as the model's `stream`.
        """
        call = stream_reply(
            model=self.model, messages=messages, max_tokens=max_tokens, temperature=self.temperature, kinds=kinds
        )
        reply = await take_reply(call)
        if reply.finish is ModelFinish.CONTENT_FILTER:
            raise ContentFilteredError("the model's provider withheld text of the search")
        return reply

    def cost_of(self, messages: Sequence[Message], *, more_tokens: int) -> Cost:
        """Return the largest cost of one call with `messages` and at most `more_tokens` further tokens."""
        if not self.are_tokens_bounded:
            return Cost(model_calls=1)
        return Cost(model_calls=1, tokens=bound_prompt(messages, self.counter) + more_tokens)


class ThoughtProposer:
    """Asks for all thoughts of an expansion in one call.

    So the prompt is billed once, and the model sees its earlier thoughts when it writes the next one. Separate samples
    repeat each other. (ToT calls the two methods "propose" and "sample".)
    """

    def __init__(self, *, calls: ThoughtCalls, max_depth: int) -> None:
        self._calls = calls
        self._max_depth = max_depth

    def bound_cost(self, node: Node[TreeThought], *, count: int) -> Cost:
        """Return the largest cost of the call."""
        return self._calls.cost_of(self._build_prompt(node, count), more_tokens=count * self._calls.thought_tokens)

    async def propose(self, node: Node[TreeThought], *, count: int) -> Proposals[TreeThought]:
        """Return the thoughts of one reply; see the port. A repeated step of the path gets that step's key."""
        calls, path = self._calls, list_path(node)
        reply = await calls.make(self._build_prompt(node, count), max_tokens=count * calls.thought_tokens, kinds=())
        text = reply.parsed.text
        is_whole = reply.finish is not ModelFinish.LENGTH and not reply.parsed.is_cut
        candidates = []
        is_last, is_program = self._is_last(node), calls.prompts.is_program
        for found in split_thoughts(text, count=count, is_whole=is_whole, is_last=is_last, is_program=is_program):
            thought = TreeThought(text=calls.counter.head(found.text, calls.thought_tokens), answer=found.answer)
            candidates.append(
                Candidate(payload=thought, key=_compute_key(path, thought), claims_solution=bool(thought.answer))
            )
        return Proposals(candidates=candidates, spent=_measure_cost(reply))

    def _build_prompt(self, node: Node[TreeThought], count: int) -> Sequence[Message]:
        return self._calls.prompts.propose(list_path(node), count=count, is_last=self._is_last(node))

    def _is_last(self, node: Node[TreeThought]) -> bool:
        """Return whether the thoughts that follow a node have to be solutions."""
        return node.depth + 1 >= self._max_depth


class ThoughtEvaluator:
    """Scores thoughts: each in a separate call, or all siblings in one call (`is_comparing`)."""

    def __init__(self, *, calls: ThoughtCalls, is_comparing: bool) -> None:
        self._calls = calls
        self._is_comparing = is_comparing

    def bound_cost(self, parent: Node[TreeThought], *, count: int) -> Cost:
        """Return the largest cost of one call, or of `count` calls if thoughts are judged separately."""
        shown = count if self._is_comparing else 1
        per_thought = self._calls.thought_tokens + FENCE_TOKENS
        messages = self._calls.prompts.judge(list_path(parent), [""] * shown)
        one = self._calls.cost_of(messages, more_tokens=shown * per_thought + self._calls.thought_tokens)
        times = 1 if self._is_comparing else count
        return Cost(model_calls=times * one.model_calls, tokens=times * one.tokens)

    def divide(self, candidates: Sequence[Candidate[TreeThought]]) -> Sequence[Sequence[Candidate[TreeThought]]]:
        """Return one batch of all candidates, or a batch for each."""
        return [candidates] if self._is_comparing else [[candidate] for candidate in candidates]

    async def judge(self, parent: Node[TreeThought], batch: Sequence[Candidate[TreeThought]]) -> Judgement:
        """Return the verdicts of one reply; a missing score is None, and a thought with an answer is a solution."""
        calls = self._calls
        messages = calls.prompts.judge(list_path(parent), [self._show(candidate.payload) for candidate in batch])
        reply = await calls.make(messages, max_tokens=calls.thought_tokens, kinds=(TagKind.ANSWER,))
        said = reply.parsed.content or reply.parsed.text
        one = len(batch) == 1
        scores = (
            [read_judgement(reply.parsed.content, reply.parsed.text)] if one else read_points(said, count=len(batch))
        )
        verdicts = [
            Verdict(score=score, is_solution=bool(candidate.payload.answer))
            for candidate, score in zip(batch, scores, strict=True)
        ]
        return Judgement(verdicts=verdicts, spent=_measure_cost(reply))

    def _show(self, thought: TreeThought) -> str:
        """Return a thought for the judge: thought and answer together have at most the tokens of one thought."""
        count, most = self._calls.counter, self._calls.thought_tokens
        answer = count.head(thought.answer, most)
        text = count.head(thought.text, most - count.count_text(answer)) if answer else thought.text
        return "\n".join(part for part in (text, answer and f"Final answer: {answer}") if part)


def list_path(node: Node[TreeThought]) -> Sequence[str]:
    """Return the texts of all thoughts from the first to this one."""
    return [each.payload.text for each in node.path]


def _compute_key(path: Sequence[str], thought: TreeThought) -> str:
    """Return the key of a thought after `path`; if it has no answer and repeats a step, the key of that step."""
    if not thought.answer:
        said = compute_content_key(thought.text)
        for place, text in enumerate(path):
            if compute_content_key(text) == said:
                return compute_content_key(*path[: place + 1], "")
    return compute_content_key(*path, thought.text, thought.answer)


def _measure_cost(reply: ModelReply) -> Cost:
    return Cost(model_calls=reply.spent.model_calls, tokens=reply.spent.total_tokens)


@value
class ProposedThought:
    """One thought of a reply; `answer` is its final answer, empty if there is none."""

    text: str
    answer: str = ""


def split_thoughts(
    text: str, *, count: int, is_whole: bool, is_last: bool = False, is_program: bool = False
) -> Sequence[ProposedThought]:
    """Return the thoughts of a reply, at most `count`, in order; a blank reply has none.

    They begin at `Thought n:` or `Way n:`, or else at `1.`, `2.` … counted from 1; without such marks the reply is one
    thought. Text before the first mark is left out. A reply with more than `count`, of which only the last has an
    answer, is one solution in steps, and so one thought. If the reply was cut (`is_whole` false), the last thought is
    left out, unless it has a tagged answer or is the only one.

    An answer is tagged, or marked as by a box or "The answer is". In the last thoughts of a path (`is_last`), which
    have to be solutions, it is also what their last line concludes. Where the question asks for a program
    (`is_program`), it is also the program.
    """
    text = _COPIED_EXAMPLE.sub("", text)
    parts = [part for part in _split_parts(text) if part.strip()]
    thoughts: list[ProposedThought] = []
    for place, part in enumerate(parts, start=1):
        is_end = place == len(parts) and not is_whole
        thought = _parse_thought(part, is_whole=not is_end, is_last=is_last, is_program=is_program)
        if is_end and not thought.answer and thoughts:
            break
        if thought.text or thought.answer:
            thoughts.append(thought)
    answered = [place for place, thought in enumerate(thoughts, start=1) if thought.answer]
    if len(thoughts) > count and answered == [len(thoughts)]:
        steps = _parse_thought(text, is_whole=is_whole, is_last=is_last, is_program=is_program).text
        return [ProposedThought(text=steps, answer=thoughts[-1].answer)]
    return thoughts[:count]


def _split_parts(text: str) -> Sequence[str]:
    """Return the text of each thought without its mark."""
    marks = list(_MARK.finditer(text))
    if not marks:
        numbered = list(_NUMBER_MARK.finditer(text))
        is_list = [int(mark[1]) for mark in numbered] == list(range(1, len(numbered) + 1))
        marks = numbered if is_list and len(numbered) > 1 else []
    if not marks:
        return [text]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [text[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]


def _parse_thought(part: str, *, is_whole: bool, is_last: bool, is_program: bool) -> ProposedThought:
    parsed = parse_reply(part, kinds=(TagKind.ANSWER,), is_stop=is_whole)
    if "<" in parsed.content:
        # Another tag within the answer.
        parsed = settle_reply(parsed)
    answer = parsed.content.strip() if parsed.is_closed else ""
    text = parsed.text.strip() if answer else (parsed.text + parsed.content).strip()
    if (EXAMPLE_ANSWER in answer or EXAMPLE_FUNCTION in answer) and is_placeholder(answer):
        answer = ""
    program = find_program(text) if is_program and is_whole and not answer else ""
    if program and not is_placeholder(program):
        return ProposedThought(text=text.partition(program)[0].strip(), answer=program)
    if not answer and is_whole:
        answer = find_answer(text) if is_last else find_marked_answer(text)
    return ProposedThought(text=text, answer=answer)
