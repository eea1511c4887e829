"""Every code block of the documentation works: shell and Python run against one real server, data is loaded."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.snippets import Snippet, pattern_of, snippets
from tests.forking import ForkedProcess, forking_process, run_forked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "clients").glob("*/README.md"),
        *(ROOT / "examples").glob("*/README.md"),
    }
)
FOUND = [snippet for page in PAGES for snippet in snippets(page)]
DOCUMENTED_GRPC = re.compile(r"\b(?:127\.0\.0\.1|localhost):50051\b")
DOCUMENTED_HTTP = re.compile(r"\b(?:127\.0\.0\.1|localhost):8001\b")
PROGRAMS = re.compile(r"^\s*(?:\w+=\$\()?(grpcurl|curl|jq|go|node|npm|npx)\b", re.MULTILINE)
LIMIT_S = 180.0


def identity(snippet: Snippet) -> str:
    return f"{snippet.path.relative_to(ROOT)}:{snippet.line}"


def choose_blocks(*languages: str) -> pytest.MarkDecorator:
    """Return a test's parameters: the blocks in `languages`; skipped blocks carry their reason."""
    parameters = [
        pytest.param(
            snippet, id=identity(snippet), marks=[pytest.mark.skip(reason=snippet.skip)] if snippet.skip else []
        )
        for snippet in FOUND
        if snippet.language in languages
    ]
    return pytest.mark.parametrize("snippet", parameters)


def with_addresses(text: str, server: Mapping[str, str]) -> str:
    """Return `text` with the documented addresses replaced by those of `server`."""
    return DOCUMENTED_HTTP.sub(server["http"], DOCUMENTED_GRPC.sub(server["grpc"], text))


def known_to(server: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the environment that the documentation uses."""
    return {
        "TOKEN": server["token"],
        "REASOND_TOKEN": server["token"],
        "REASOND_TARGET": server["grpc"],
        "GRPC": server["grpc"],
        "HTTP": server["http"],
    }


def succeed(command: list[str], server: Mapping[str, str]) -> str:
    """Run `command` at the root, as the documentation says, and return what it prints; if it fails, show all of it."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **known_to(server)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@choose_blocks("bash")
def test_a_shell_snippet_exits_0_and_prints_what_the_page_shows(
    snippet: Snippet, dev_server: Mapping[str, str], required_program: Callable[[str], str]
) -> None:
    for program in PROGRAMS.findall(snippet.text):
        required_program(program)
    printed = succeed(["bash", "-euo", "pipefail", "-c", with_addresses(snippet.text, dev_server)], dev_server)
    if snippet.output:
        assert pattern_of(snippet.output).fullmatch(printed.strip()), printed


@choose_blocks("python")
def test_a_python_snippet_runs_with_warnings_as_errors(
    snippet: Snippet, dev_server: Mapping[str, str], tmp_path: Path
) -> None:
    # Most import the client, which takes a third of a second, and only what every import of it brings is imported.
    parent = forking_process(("reasond",), ("-W", "error"))
    environ = {**os.environ, **known_to(dev_server)}
    out = tmp_path / "out"
    process = ForkedProcess(
        with_addresses(snippet.text, dev_server),
        environ=environ,
        folder=ROOT,
        stderr=out,
        call="tests.docs.snippet_program:main",
        parent=parent,
    )
    try:
        assert process.wait(LIMIT_S) == 0, out.read_text("utf-8")
    finally:
        process.kill()


@choose_blocks("toml")
def test_a_toml_snippet_is_a_valid_configuration(snippet: Snippet, tmp_path: Path) -> None:
    parsed = tomllib.loads(snippet.text)
    assert parsed
    if "parse" in snippet.flags:
        return
    path = tmp_path / "config.toml"
    path.write_text(snippet.text, encoding="utf-8")
    # A documented configuration contains no secret, or only the name of the variable with the secret.
    known = {"REASOND_SIGNING_KEY": secrets.token_urlsafe(48)}
    if not {"keys", "jwks_url"} & set(parsed.get("auth", {})):
        known["REASOND__AUTH__KEYS"] = '[{ id = "main", secret_env = "REASOND_SIGNING_KEY" }]'
    llm = parsed.get("llm", {})
    known |= {name: "sk-documented" for name in [llm.get("api_key_env", "OPENAI_API_KEY")] if name and "model" in llm}
    command = ("config", "check", "--config", str(path))
    done = run_forked(*command, environ={**os.environ, **known}, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@choose_blocks("json")
def test_a_json_snippet_parses(snippet: Snippet) -> None:
    assert json.loads(snippet.text) is not None


def test_the_page_for_authors_quotes_a_strategy_of_the_server_as_it_is() -> None:
    page = (ROOT / "docs" / "strategies" / "write-your-own.md").read_text(encoding="utf-8")
    file = ROOT / "src" / "reasond_server" / "strategies" / "chain_of_thought.py"
    assert f"```python\n{file.read_text(encoding='utf-8')}```" in page


def test_a_block_that_is_not_run_names_the_test_that_does_or_what_is_missing() -> None:
    untested = {
        "compiles the standard library of Go",
        "installs into the environment of the tests",
        "installs packages; the package has no public address yet",
        "needs Debian's ruby-grpc-tools",
        "needs grpc_php_plugin",
        "these run the suite that runs this page",
        "stays up until it is stopped; these blocks are run against such a server",
        "writes into the tree",
        ".ci/run runs it, and with it this page",
        "makes an environment of its own; tests/integration runs the demo",
    }
    named = re.compile(r"\btests/[\w/]+(?:\.py)?")
    skipped = {(identity(snippet), snippet.skip) for snippet in FOUND if snippet.skip}
    lost = {
        (place, skip)
        for place, skip in skipped
        if skip not in untested and not any((ROOT / path).exists() for path in named.findall(skip))
    }
    assert lost == set()


def test_the_readme_has_snippets() -> None:
    assert any(snippet.path == ROOT / "README.md" for snippet in FOUND)
