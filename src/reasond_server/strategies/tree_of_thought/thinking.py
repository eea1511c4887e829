"""Thoughts as nodes: a language model proposes them and judges them, one by one or against their siblings."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.context.calls import Reply, bound_prompt, hear
from reasond_server.context.tags import TagKind
from reasond_server.errors import ContentFilteredError, InternalError
from reasond_server.llm.model import ModelFinish
from reasond_server.search.allowance import Cost
from reasond_server.search.tree import Candidate, Judgement, Proposals, Verdict, content_key_of
from reasond_server.strategies.tree_of_thought.reading import read_points, read_score, split_thoughts
from reasond_server.strategies.tree_of_thought.room import FENCE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, Message, TokenCounter
    from reasond_server.search.tree import Node
    from reasond_server.strategies.tree_of_thought.prompts import TreePrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """What a node holds; `answer` is the final answer of a solution."""

    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtCalls:
    """How a model is called in a search over thoughts.

    `thought_tokens` is the most that one thought, one judgement or the answer may have. `counter` must not learn while
    the search runs. `are_tokens_bounded` tells whether costs are wanted in tokens, which takes counting.
    """

    model: ChatModel
    prompts: TreePrompts
    counter: TokenCounter
    thought_tokens: int
    temperature: float
    are_tokens_bounded: bool

    async def reply(self, messages: Sequence[Message], *, max_tokens: int, kinds: Sequence[TagKind]) -> Reply:
        """Make one call and return the whole reply.

        Raises:
            ContentFilteredError: the provider withheld text.
            ReasondError: as the model's `stream`.
        """
        call = hear(
            model=self.model, messages=messages, max_tokens=max_tokens, temperature=self.temperature, kinds=kinds
        )
        reply: Reply | None = None
        async with aclosing(call) as heard:
            async for piece in heard:
                reply = piece if isinstance(piece, Reply) else reply
        if reply is None:
            raise InternalError("a model call ended without a reply")
        if reply.finish is ModelFinish.CONTENT_FILTER:
            raise ContentFilteredError("the model's provider withheld text of the search")
        return reply

    def bound(self, messages: Sequence[Message], *, more_tokens: int) -> Cost:
        """Return one call with `messages` and that many further tokens at most."""
        if not self.are_tokens_bounded:
            return Cost(model_calls=1)
        return Cost(model_calls=1, tokens=bound_prompt(messages, self.counter) + more_tokens)


class ThoughtProposer:
    """Asks for all thoughts of an expansion in one call.

    So the prompt is paid for once, and the model sees the thoughts that it has written when it writes the next:
    samples taken apart repeat each other (ToT calls the two ways "propose" and "sample").
    """

    def __init__(self, *, calls: ThoughtCalls, max_depth: int) -> None:
        self._calls = calls
        self._max_depth = max_depth

    def bound_cost(self, node: Node[Thought], *, count: int) -> Cost:
        """Return one call."""
        return self._calls.bound(self._prompt(node, count), more_tokens=count * self._calls.thought_tokens)

    async def propose(self, node: Node[Thought], *, count: int) -> Proposals[Thought]:
        """Return the thoughts of one reply; see the port. One that repeats its own way so far has that one's key."""
        calls, path = self._calls, path_of(node)
        reply = await calls.reply(self._prompt(node, count), max_tokens=count * calls.thought_tokens, kinds=())
        text = reply.parsed.text
        is_whole = reply.finish is not ModelFinish.LENGTH and not reply.parsed.is_cut
        candidates = []
        for found in split_thoughts(text, is_whole=is_whole)[:count]:
            thought = Thought(text=calls.counter.head(found.text, calls.thought_tokens), answer=found.answer)
            candidates.append(Candidate(payload=thought, key=_key(path, thought), claims_solution=bool(thought.answer)))
        return Proposals(candidates=candidates, spent=_spent(reply))

    def _prompt(self, node: Node[Thought], count: int) -> Sequence[Message]:
        is_last = node.depth + 1 >= self._max_depth
        return self._calls.prompts.propose(path_of(node), count=count, is_last=is_last)


class ThoughtEvaluator:
    """Scores thoughts: each in a call of its own, or all siblings in one call (`is_comparing`)."""

    def __init__(self, *, calls: ThoughtCalls, is_comparing: bool) -> None:
        self._calls = calls
        self._is_comparing = is_comparing

    def bound_cost(self, parent: Node[Thought], *, count: int) -> Cost:
        """Return one call, or `count` where thoughts are judged alone."""
        shown = count if self._is_comparing else 1
        per_thought = self._calls.thought_tokens + FENCE_TOKENS
        messages = self._calls.prompts.judge(path_of(parent), [""] * shown)
        one = self._calls.bound(messages, more_tokens=shown * per_thought + self._calls.thought_tokens)
        times = 1 if self._is_comparing else count
        return Cost(model_calls=times * one.model_calls, tokens=times * one.tokens)

    def divide(self, candidates: Sequence[Candidate[Thought]]) -> Sequence[Sequence[Candidate[Thought]]]:
        """Return all together, or each alone."""
        return [candidates] if self._is_comparing else [[candidate] for candidate in candidates]

    async def judge(self, parent: Node[Thought], batch: Sequence[Candidate[Thought]]) -> Judgement:
        """Return the verdicts of one reply, without a score where it gives none; an answered thought is a solution."""
        calls = self._calls
        messages = calls.prompts.judge(path_of(parent), [self._shown(candidate.payload) for candidate in batch])
        reply = await calls.reply(messages, max_tokens=calls.thought_tokens, kinds=(TagKind.ANSWER,))
        said = reply.parsed.content or reply.parsed.text
        scores = [read_score(said)] if len(batch) == 1 else read_points(said, count=len(batch))
        verdicts = [
            Verdict(score=score, is_solution=bool(candidate.payload.answer))
            for candidate, score in zip(batch, scores, strict=True)
        ]
        return Judgement(verdicts=verdicts, spent=_spent(reply))

    def _shown(self, thought: Thought) -> str:
        """Return a thought as a judge sees it, with no more tokens of thought and answer than one thought may have."""
        count, most = self._calls.counter, self._calls.thought_tokens
        answer = count.head(thought.answer, most)
        text = count.head(thought.text, most - count.count_text(answer)) if answer else thought.text
        return "\n".join(part for part in (text, answer and f"Final answer: {answer}") if part)


def path_of(node: Node[Thought]) -> Sequence[str]:
    """Return the texts of the thoughts from the first to this one."""
    return [each.payload.text for each in node.path]


def _key(path: Sequence[str], thought: Thought) -> str:
    """Return the key: the way and the thought; that of the step which a thought without an answer only repeats."""
    if not thought.answer:
        said = content_key_of(thought.text)
        for place, text in enumerate(path):
            if content_key_of(text) == said:
                return content_key_of(*path[: place + 1], "")
    return content_key_of(*path, thought.text, thought.answer)


def _spent(reply: Reply) -> Cost:
    return Cost(model_calls=1, tokens=reply.usage.total_tokens)
