from collections.abc import Mapping, Sequence

from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Message, TokenCounter
from reasond_server.runs.replay.calibration import calibration_of, fork_of
from reasond_server.types import Json


class Learning(WordPieceCounter):
    """A counter that learns a number."""

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
    own = fork_of(shared, {})
    shared.learnt = 9
    assert own is not shared
    assert calibration_of(own) == {"learnt": 3}


def test_a_run_that_is_made_again_counts_as_it_did() -> None:
    assert calibration_of(fork_of(Learning(9), {"learnt": 3})) == {"learnt": 3}


def test_a_counter_that_learns_nothing_is_shared() -> None:
    counter = WordPieceCounter()
    assert fork_of(counter, {"learnt": 3}) is counter
    assert calibration_of(counter) == {}
