from __future__ import annotations

from reasond.v1.strategies_pb2 import BoundedContextStep, ReadingProgress
from reasond_server.cli.show.run import ReadingNews


def read(segment: int, *lines: str) -> BoundedContextStep:
    return BoundedContextStep(carryover="\n".join(lines), reading=ReadingProgress(segment=segment, segment_count=57))


def test_what_was_noted_before_is_no_news_even_after_it_was_dropped() -> None:
    news = ReadingNews()
    assert news.find(read(1, "Opening:", "- Rain fell.")) == "Rain fell."
    assert news.find(read(2, "Opening:", "* Rain fell.", "Latest:")) == ""
    assert news.find(read(3, "Opening:", "Four gates.")) == "Four gates."
    assert news.find(read(4, "Rain fell.", "Four gates.")) == ""
    assert (news.count, news.windows) == (2, 4)


def test_a_line_that_counts_the_segments_is_no_news() -> None:
    news = ReadingNews()
    news.find(read(4, "Segment 4 of 57: 0 new sentences."))
    assert news.find(read(5, "Segment 5 of 57: 2 new sentences.")) == ""
    assert news.find(read(6, "Segment 6 of 57: the gate is open.")) == "Segment 6 of 57: the gate is open."
    assert news.find(read(7, "Room 12 costs 30.")) == "Room 12 costs 30."
    assert news.find(read(8, "Room 13 costs 40.")) == "Room 13 costs 40.", "other numbers are other facts"
