"""Votes on the next step of a turn: of several replies to one prompt, one is taken that most of them agree with.

Replies agree if they make the same calls in the same order: the same tools with arguments of equal JSON values. All
replies without a call are one vote for answering now, whatever they say. Of equals the first wins, and the votes end as
soon as no further reply can change the outcome (`context.votes`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from reasond_server.context.vote_forms import normalize_answer
from reasond_server.context.votes import Tally
from reasond_server.eventlog.store import Record
from reasond_server.turns.model_calls import TurnReply
from reasond_server.types import NOTHING, ToolCall, Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLE: Final = "sample"
"""The beginning of the key of a record: a reply of the turn that follows, to its model call with the number behind it.

A repeated request takes over the records of a turn that was cancelled, whose prompts were others.
"""

_ANSWER: Final = "answer"


@dataclass(kw_only=True)
class ToolVotes:
    """The replies so far to the model call `index` of the turn `turn_id`, of at most `samples`.

    Attributes:
        usage: what the `replies` of earlier lives of the turn have spent.
    """

    turn_id: str
    index: int
    samples: int
    replies: list[TurnReply] = field(default_factory=list)
    usage: Usage = NOTHING

    @property
    def _tally(self) -> Tally:
        return Tally(cast=[spell_step(each) for each in self.replies])

    @property
    def is_settled(self) -> bool:
        """Whether no further reply can change the outcome."""
        return self._tally.is_decided(self.samples - len(self.replies), min_agreement=0)

    @property
    def winner(self) -> TurnReply:
        """The first reply with the calls that most replies make; there is at least one."""
        tally = self._tally
        return self.replies[tally.cast.index(tally.winner)]

    def add(self, reply: TurnReply, spent: Usage) -> Record:
        """Take a reply that has `spent` tokens, and return its record: a later life does not ask for it again."""
        self.replies.append(reply)
        row = {"v": 1, "reply": asdict(reply), "spent": asdict(spent)}
        return Record(key=f"{SAMPLE}::{self.turn_id}::{self.index}::{len(self.replies)}", body=json.dumps(row))

    def restore(self, records: Iterable[Record]) -> None:
        """Take the replies to this call that `records` of earlier lives have."""
        for record in records:
            if is_sample(record, self.turn_id, self.index) and len(self.replies) < self.samples:
                row = json.loads(record.body)
                calls = tuple(ToolCall(**call) for call in row["reply"]["calls"])
                self.replies.append(TurnReply(**{**row["reply"], "calls": calls}))
                self.usage += Usage(**{**row["spent"], "source": UsageSource(row["spent"]["source"])})


def is_sample(record: Record, turn_id: str, index: int) -> bool:
    """Return whether `record` is that of a reply to the model call `index` of the turn."""
    return record.key.startswith(f"{SAMPLE}::{turn_id}::{index}::")


def spell_step(reply: TurnReply) -> str:
    """Return the form of a reply by which votes are counted."""
    calls = [[call.name, normalize_answer(call.arguments_json)] for call in reply.calls]
    return json.dumps(calls) if calls else _ANSWER
