"""What `reasond install` prints is enough for the programs themselves, where they are installed.

By hand, because they are some 3 GB: `npm install @openai/codex @anthropic-ai/claude-code cline
@codingame/monaco-vscode-api`, which is VS Code's own source, and, in an environment of its own, `pip install
open-webui`; then with `node_modules/.bin` and that environment's `bin` on PATH
`pytest -n0 tests/openai_clients/test_installed_programs.py`. All of it runs without a network but the loopback.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from jsonschema_rs import Draft7Validator

from reasond_server.cli.commands.install import install
from reasond_server.testing import running_server_in_thread
from tests.temporal.temporal_server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.base.addresses import Listening

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "What is 15% of 240?"
LIMIT_S = 240
VS_CODE = "@codingame/monaco-vscode-api/vscode/src/vs/workbench/contrib/mcp/common/mcpConfiguration.js"
ASKED = {
    "codex": ("codex", "exec", "--skip-git-repo-check", QUESTION),
    "claude": ("claude", "-p", QUESTION),
    "cline": ("cline", "--data-dir", "data", QUESTION),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with running_server_in_thread() as listening:
        yield listening


def find(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed here")
    return path


def run(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Run a program in `folder`, which is its home as well, and return what it prints."""
    told = {"PATH": os.environ["PATH"], "HOME": str(folder), **environ}
    done = subprocess.run(
        [find(words[0]), *words[1:]],
        cwd=folder,
        env=told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_exports(text: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that the lines of a shell set."""
    rows = [shlex.split(line)[1].partition("=") for line in text.splitlines() if line.startswith("export ")]
    return {name: environ.get(value.removeprefix("$"), value) for name, _, value in rows}


@pytest.mark.parametrize("client", ASKED)
def test_a_client_that_is_set_up_as_told_gets_an_answer(
    client: str, server: Listening, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find(client)
    environ = {"REASOND_TOKEN": server.token}
    install(client, url=server.http, model="reasond", home=tmp_path, environ=environ)
    told = capsys.readouterr().out
    if client == "claude":
        environ |= read_exports(told, environ)
    if client == "cline":
        words = shlex.split(told.partition("\n")[0].replace("$REASOND_TOKEN", server.token))
        run([*words, "--data-dir", "data"], tmp_path, environ)
    assert "36" in run(ASKED[client], tmp_path, environ)


def test_vs_codes_own_schema_takes_the_file_of_tools(capsys: pytest.CaptureFixture[str]) -> None:
    places = (Path(folder).parent / VS_CODE for folder in os.environ["PATH"].split(os.pathsep))
    place = next((path for path in places if path.exists()), None)
    if place is None:
        pytest.skip("VS Code's source is not installed here")
    program = f"import({json.dumps(place.as_uri())}).then((one) => console.log(JSON.stringify(one.mcpServerSchema)))"
    schema = subprocess.run([find("node"), "-e", program], capture_output=True, check=True, timeout=LIMIT_S).stdout
    validator = Draft7Validator(json.loads(schema))
    install("vscode-mcp", url="http://127.0.0.1:8001", model="reasond", home=None, environ={"REASOND_TOKEN": "t"})
    told = json.loads(capsys.readouterr().out.partition("\nIt belongs")[0])
    validator.validate(told)
    assert not validator.is_valid({**told, "servers": {"reasond": {"type": "http"}}})


@contextmanager
def serving_open_webui(folder: Path, environ: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Run Open WebUI with its data in `folder`, and yield a client of its first user, who is its administrator."""
    port = free_port()
    told = {"PATH": os.environ["PATH"], "HOME": str(folder), "DATA_DIR": str(folder), **environ}
    # Nothing is loaded from elsewhere: no model for embeddings, no news of versions.
    told |= {"OFFLINE_MODE": "true", "RAG_EMBEDDING_ENGINE": "openai"}
    words = [find("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=told, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S, trust_env=False) as client:
            limit = time.monotonic() + LIMIT_S
            while not _is_healthy(client):
                if process.poll() is not None or time.monotonic() > limit:
                    pytest.fail((folder / "log").read_text("utf-8")[-3000:])
                time.sleep(0.5)
            person = {"name": "A Person", "email": "person@example.com", "password": "a long password"}
            session = client.post("/api/v1/auths/signup", json=person).json()
            client.headers["Authorization"] = f"Bearer {session['token']}"
            yield client
    finally:
        process.terminate()
        process.wait()


def _is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


def test_open_webui_lists_the_models_and_streams_an_answer_and_asks_the_task_model_for_a_title(
    server: Listening, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find("open-webui")
    environ = {"REASOND_TOKEN": server.token}
    install("openwebui", url=server.http, model="reasond", home=None, environ=environ)
    environ |= read_exports(capsys.readouterr().out, environ)
    with serving_open_webui(tmp_path, environ) as client:
        models = {each["id"] for each in client.get("/api/models").json()["data"]}
        assert {"reasond", "reasond/direct", "reasond/react"} <= models
        messages = [{"role": "user", "content": QUESTION}]
        body = {"model": "reasond", "messages": messages}
        with client.stream("POST", "/api/chat/completions", json=body | {"stream": True}) as stream:
            rows = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
        deltas = [choice["delta"] for row in rows for choice in json.loads(row).get("choices", ())]
        assert "36" in "".join(each.get("content") or "" for each in deltas)
        assert any(each.get("reasoning_content") for each in deltas)
        assert "36" in client.post("/api/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        title = client.post("/api/v1/tasks/title/completions", json=body).json()
        assert title["model"] == "reasond/direct"


def test_claude_code_as_a_host_of_tools_reaches_a_server_and_starts_one_of_its_own(
    server: Listening, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find("claude")
    environ = {"REASOND_TOKEN": server.token}
    blocks = []
    for host in ("cursor", "claude-desktop"):
        install(host, url=server.http, model="reasond", home=None, environ=environ)
        told = capsys.readouterr().out
        blocks.append(json.JSONDecoder().raw_decode(told, told.index("{"))[0]["mcpServers"]["reasond"])
    there, own = blocks
    header = f"Authorization: {there['headers']['Authorization'].replace('${env:REASOND_TOKEN}', server.token)}"
    run(("claude", "mcp", "add", "--transport", "http", "there", there["url"], "--header", header), tmp_path, environ)
    run(("claude", "mcp", "add-json", "own", json.dumps(own)), tmp_path, environ)
    # A busy machine may take longer to start a program than Claude Code waits by itself.
    told = run(("claude", "mcp", "list"), tmp_path, environ | {"MCP_TIMEOUT": "200000"})
    assert told.count("✔ Connected") == len(blocks), told
