"""Texts for users never name a requirement's id, because users do not have the documents of the requirements."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from reasond_server.config import list_key_docs
from reasond_server.reasoning.registry import discover

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"\bseeds? 00\d|\b(?:FR|BR|AGN)-\d|\bcontract decision|\bcontract\.md", re.IGNORECASE)
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "config.example.toml")),
    *(
        path
        for folder in ("api", "guides", "operations", "strategies")
        for path in (ROOT / "docs" / folder).glob("*.md")
    ),
    *(ROOT / "proto").rglob("*.proto"),
]
SOURCES = [
    *(ROOT / "src").rglob("*.py"),
    *(path for path in (ROOT / "clients" / "python" / "src").rglob("*.py") if path.parent.name != "v1"),
]


def texts_of(tree: ast.AST) -> list[str]:
    """Return the string constants of `tree` except docstrings: messages, descriptions, help."""
    statements = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements
    ]


def test_no_page_and_no_proto_names_a_requirement() -> None:
    assert len(PAGES) > 20
    assert [path.name for path in PAGES if REQUIREMENT.search(path.read_text(encoding="utf-8"))] == []


def test_no_message_help_or_description_in_the_code_names_a_requirement() -> None:
    found = [
        f"{path.name}: {text}"
        for path in SOURCES
        for text in texts_of(ast.parse(path.read_text(encoding="utf-8")))
        if REQUIREMENT.search(text)
    ]
    assert found == []


def test_no_published_schema_names_a_requirement() -> None:
    strategies = list(discover(["bounded_context", "chain_of_thought"]))
    schemas = [json.dumps([one.get_config_schema(), one.description]) for one in strategies]
    assert [
        text for text in (*schemas, *(doc.description for doc in list_key_docs())) if REQUIREMENT.search(text)
    ] == []
