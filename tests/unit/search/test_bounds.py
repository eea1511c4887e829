"""Bounds of prompts."""

from __future__ import annotations

from reasond_server.llm.counting import EstimatingCounter, WordPieceCounter
from reasond_server.llm.model import Message, Role
from reasond_server.search.bounds import prompt_bound

MESSAGES = (Message(role=Role.SYSTEM, content="Rule."), Message(role=Role.USER, content="Zwölf \ud800?"))


def test_an_exact_counter_is_believed() -> None:
    assert prompt_bound(MESSAGES, WordPieceCounter()) == WordPieceCounter().count_prompt(MESSAGES)


def test_where_it_only_estimates_bytes_bound_the_prompt() -> None:
    assert prompt_bound(MESSAGES, EstimatingCounter()) == 2 * 64 + len("Rule.") + len("Zwölf ?") + 1 + 1
