"""New findings of all critics, and critics that fail."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from reasond_server.repair.critics.code_reviews import REVIEW, Reviews, perform_directly
from reasond_server.types.repairs import Finding, Severity
from tests.repairing import source_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import pytest

    from reasond_server.types.repairs import SourceFile

FILES = source_files({"a.py": "bad\n", "b.py": "bad\n"})


class WordCritic:
    """Finds each line "bad"."""

    def __init__(self, name: str = "words") -> None:
        self.name = name
        self.seen: list[Mapping[str, bytes | None]] = []
        self.fails = False

    async def review(self, files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> Sequence[Finding]:
        assert files is FILES
        self.seen.append(changes)
        if self.fails:
            raise KeyError("secret")
        return [
            Finding(rule_id="bad", severity=Severity.MEDIUM, path=path, line=number, message=self.name)
            for path, content in changes.items()
            for number, line in enumerate((content or b"").splitlines(), start=1)
            if line == b"bad"
        ]


def reviews(*critics: Any, perform: Any = perform_directly) -> Reviews:
    return Reviews(critics=critics, files=FILES, perform=perform)


async def test_only_what_the_original_does_not_have_is_new() -> None:
    found = await reviews(WordCritic()).find_new({"a.py": b"x\nbad\nbad\n", "new.py": b"bad", "b.py": None})
    assert [(one.path, one.line) for one in found] == [("a.py", 3), ("new.py", 1)]


async def test_the_original_of_a_file_is_looked_at_once_and_only_where_there_are_findings() -> None:
    critic = WordCritic()
    one = reviews(critic)
    await one.find_new({"a.py": b"good"})
    assert critic.seen == [{"a.py": b"good"}]
    await one.find_new({"a.py": b"bad\nbad"})
    await one.find_new({"a.py": b"bad\nbad\nbad"})
    assert critic.seen[1:] == [{"a.py": b"bad\nbad"}, {"a.py": b"bad\n"}, {"a.py": b"bad\nbad\nbad"}]


async def test_a_critic_that_fails_is_left_out_with_a_warning_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = WordCritic("broken"), WordCritic()
    bad.fails = True
    one = reviews(bad, good)
    with caplog.at_level(logging.ERROR, "reasond.repair"):
        for _ in range(2):
            assert len(await one.find_new({"new.py": b"bad"})) == 1
    assert len(bad.seen) == 1
    assert one.warnings == ["The critic broken failed and was left out; the server's log has the cause."]
    assert "secret" in caplog.text


async def test_each_review_is_an_effect_whose_record_is_believed() -> None:
    records: dict[str, str] = {}

    async def keep(kind: str, digest: str, run: Callable[[], Awaitable[str]]) -> str:
        assert kind == REVIEW
        if digest not in records:
            records[digest] = await run()
        return records[digest]

    first, second = WordCritic(), WordCritic()
    changes = {"a.py": b"bad\nbad"}
    found = await reviews(first, perform=keep).find_new(changes)
    assert await reviews(second, perform=keep).find_new(changes) == found
    assert not second.seen
    assert all("bad" not in digest and len(digest) == 64 for digest in records)
