from collections.abc import Mapping, Sequence

import pytest

from reasond_server.eventlog.store import Record
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import Message, TokenCounter
from reasond_server.runs.accounts import Accounts, fork_counter, read_calibration
from reasond_server.runs.recorded_calls import RecordedCall, encode_call
from reasond_server.runs.run_journal import RunJournal
from reasond_server.testing import ScriptedModel
from reasond_server.types import NOTHING, Budget, Json, Usage


def usage(calls: int, tokens: int) -> Usage:
    return Usage(input_tokens=tokens, output_tokens=tokens, model_calls=calls)


class Nowhere:
    """A sink that discards records."""

    async def wait_for_room(self) -> None: ...

    async def flush(self) -> None: ...


def journal_of(*calls: Usage) -> RunJournal:
    """Return the journal of a run that has recorded these calls."""
    bodies = [encode_call(RecordedCall(events=(), usage=each)) for each in calls]
    records = [Record(key=f"model:{number}:1", body=body) for number, body in enumerate(bodies)]
    return RunJournal(records=records, write=lambda _: None, sink=Nowhere())


def accounts_of(model: MeteredModel, before: Usage = NOTHING, journal: RunJournal | None = None) -> Accounts:
    return Accounts(model=model, monotonic=lambda: 0.0, began_s=0.0, before=before, journal=journal)


@pytest.fixture
def model() -> MeteredModel:
    return MeteredModel(model=ScriptedModel([]), budget=Budget())


def test_without_an_earlier_life_it_is_what_the_model_spent(model: MeteredModel) -> None:
    accounts = accounts_of(model)
    model.recall(usage(1, 10), ())
    assert accounts.usage == model.usage


def test_what_is_recalled_is_not_counted_twice_and_what_was_broken_off_is_kept(model: MeteredModel) -> None:
    journal = journal_of(usage(1, 10), usage(1, 10))
    accounts = accounts_of(model, before=usage(3, 30), journal=journal)
    totals = [accounts.usage]
    for _ in range(2):
        journal.recall(usage(1, 10))
        model.recall(usage(1, 10), ())
        totals.append(accounts.usage)
    model.recall(usage(1, 10), ())
    assert [*totals, accounts.usage] == [usage(3, 30), usage(3, 30), usage(3, 30), usage(4, 40)]


def test_what_is_on_record_and_not_asked_for_again_was_paid_for_nevertheless(model: MeteredModel) -> None:
    accounts = accounts_of(model, before=usage(3, 30), journal=journal_of(usage(2, 20)))
    model.recall(usage(2, 25), ())
    assert accounts.usage == usage(5, 55)


def test_more_on_record_than_was_told_before_is_no_negative_cost(model: MeteredModel) -> None:
    journal = journal_of(usage(2, 20))
    accounts = accounts_of(model, before=usage(1, 10), journal=journal)
    assert accounts.usage == usage(2, 20)
    journal.recall(usage(2, 20))
    model.recall(usage(2, 20), ())
    assert accounts.usage == usage(2, 20)


class Learning(WordPieceCounter):
    """A counter that has learnt one number."""

    def __init__(self, learnt: int) -> None:
        super().__init__()
        self.learnt = learnt

    def fork(self) -> TokenCounter:
        return Learning(self.learnt)

    def snapshot(self) -> Json:
        return {"learnt": self.learnt}

    def restore(self, snapshot: Mapping[str, int]) -> None:
        self.learnt = snapshot["learnt"]

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        del messages
        self.learnt = reported


def test_a_run_has_a_counter_of_its_own() -> None:
    shared = Learning(3)
    own = fork_counter(shared, {})
    shared.learnt = 9
    assert own is not shared
    assert read_calibration(own) == {"learnt": 3}


def test_a_run_that_is_made_again_counts_as_it_did() -> None:
    assert read_calibration(fork_counter(Learning(9), {"learnt": 3})) == {"learnt": 3}


def test_a_counter_that_learns_nothing_is_shared() -> None:
    counter = WordPieceCounter()
    assert fork_counter(counter, {"learnt": 3}) is counter
    assert read_calibration(counter) == {}
