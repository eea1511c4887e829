"""The layer of each client over its stubs stays thin."""

from __future__ import annotations

import re

import pytest

from tests.clients.drivers import GO_FOLDER, JAVA, TYPESCRIPT_FOLDER

MAX_LINES = 400
LAYERS = {
    "go": [path for path in GO_FOLDER.glob("reasond/*.go") if not path.name.endswith("_test.go")],
    "java": list(JAVA.glob("src/main/java/reasond/*.java")),
    "typescript": list(TYPESCRIPT_FOLDER.glob("src/*.ts")),
}
NO_CODE = re.compile(
    r"/\*.*?\*/|^import \(.*?^\)|^(import|package|export \*|export \{) .*?$|^\s*//.*?$", re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("language", LAYERS)
def test_the_layer_has_at_most_400_lines_of_code(language: str) -> None:
    texts = [NO_CODE.sub("", path.read_text("utf-8")) for path in LAYERS[language]]
    lines = sum(bool(line.strip()) for text in texts for line in text.splitlines())
    assert 100 < lines <= MAX_LINES
