"""Syntax trees in any thread."""

from __future__ import annotations

import ast

import pytest

from reasond_server.base.syntax import parse_expression_tree, parse_module_tree


def test_trees_are_those_of_ast() -> None:
    assert ast.dump(parse_module_tree("x = 1")) == ast.dump(ast.parse("x = 1"))
    assert ast.dump(parse_expression_tree("x + 1")) == ast.dump(ast.parse("x + 1", mode="eval"))


def test_a_fault_of_the_source_is_told_at_once() -> None:
    with pytest.raises(SyntaxError):
        parse_module_tree("x =")


def test_a_fault_of_two_threads_that_parse_at_once_is_none_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, faults = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * 3

    def fail_at_first(source: str) -> ast.Module:
        if faults:
            raise faults.pop()
        return parse(source)

    monkeypatch.setattr("reasond_server.base.syntax.ast.parse", fail_at_first)
    assert isinstance(parse_module_tree("x = 1").body[0], ast.Assign)
    assert not faults
