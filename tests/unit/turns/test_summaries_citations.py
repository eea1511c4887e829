from __future__ import annotations

from reasond_server.turns.summaries import BrokenCitation, check_citations

RESULTS = {"c3": "x" * 180, "c4": "{}"}


def test_citations_that_point_to_text_are_not_broken() -> None:
    assert not check_citations("Both failed [c3:120-180] [c3:0-1], see [1] and [c9].", RESULTS)


def test_a_citation_without_its_result_or_beyond_its_end_is_broken() -> None:
    summary = "a [c3:120-181] b [c5:0-1] c [c4:1-1] d [c4:0-2]"
    assert check_citations(summary, RESULTS) == (
        BrokenCitation(text="[c3:120-181]", reason="the result has 180 characters"),
        BrokenCitation(text="[c5:0-1]", reason="there is no such result"),
        BrokenCitation(text="[c4:1-1]", reason="the end is not after the beginning"),
    )
