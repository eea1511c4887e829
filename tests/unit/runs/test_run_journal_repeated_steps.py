import pytest

from reasond_server.runs.run_journal import RepeatedSteps, RunJournal


class NoSink:
    async def wait_for_room(self) -> None:
        """Return at once."""

    async def flush(self) -> None:
        """Return at once."""


@pytest.mark.parametrize(
    ("done", "warnings"),
    [([b"1", b"2"], 0), ([b"1", b"2", b"3"], 0), ([b"1", b"x", b"3"], 1), ([b"1"], 1)],
    ids=["the same", "the same and more", "another one", "fewer"],
)
def test_a_run_that_does_not_repeat_its_steps_says_so(done: list[bytes], warnings: int) -> None:
    steps = RepeatedSteps([b"1", b"2"])
    for digest in done:
        if steps.new_count < 0:
            steps.compare(digest)
        steps.add()
    steps.close()
    assert (steps.count, steps.new_count) == (len(done), len(done) - 2)
    told = steps.list_changes(None, execution_id="x")
    assert [text.startswith("The server went down after 2 steps, ") for text in told] == [True] * warnings


def test_other_calls_than_those_on_record_are_told_like_other_steps() -> None:
    journal = RunJournal(write=lambda _: None, sink=NoSink())
    assert RepeatedSteps().list_changes(journal, execution_id="x") == ()
    journal.has_diverged = True
    assert len(RepeatedSteps().list_changes(journal, execution_id="x")) == 1
