"""The TypeScript client, and as it is packed: contents, examples, the entry for browsers, and grpc-js beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.pages import ROOT
from scripts.typescript_client import CLIENT, MissingProgramError, build, find_program, pack
from tests.clients.client_tests import ClientTests

if TYPE_CHECKING:
    from reasond_server.assembly.app import Listening

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
LIMIT_S = 120.0

pytestmark = pytest.mark.slow


class TestTypeScriptClient(ClientTests):
    language = "typescript"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user who has installed the packed client, with its compiled programs."""
    folder = tmp_path_factory.mktemp("typescript")
    try:
        build("lowest")
        archive = pack()
    except MissingProgramError as error:
        if IN_CI:
            pytest.fail(str(error))
        pytest.skip(str(error))
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    modules = folder / "node_modules"
    modules.mkdir()
    for each in (CLIENT / "node_modules").iterdir():
        if each.name != "@reasond":
            (modules / each.name).symlink_to(each)
    (modules / "@reasond").mkdir()
    shutil.move(folder / "package", modules / "@reasond" / "client")
    shutil.copytree(CLIENT / "build", folder / "build")
    (folder / "package.json").write_text('{"type": "module"}', "utf-8")
    return folder


def run_node(folder: Path, server: Listening, program: str, *arguments: str) -> str:
    """Run a program of Node against a server and return what it printed; it must end by itself and succeed."""
    done = subprocess.run(
        [find_program("node"), program, *arguments],
        cwd=folder,
        env={**os.environ, "REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_package_holds_what_its_users_need_and_nothing_else(package: Path) -> None:
    installed = package / "node_modules" / "@reasond" / "client"
    files = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    assert {"README.md", "package.json", "dist/index.js", "dist/node.d.ts", "dist/web.js"} <= files
    assert {Path(name).parts[0] for name in files} == {"README.md", "package.json", "dist"}
    assert {"".join(Path(name).suffixes) for name in files} == {".md", ".json", ".js", ".d.ts"}


def test_the_examples_print_what_they_promise(package: Path, example_server: Listening) -> None:
    streamed = run_node(package, example_server, "build/examples/stream.js")
    assert streamed == "1 started\n2 iteration\n3 completed\nANSWERED 36\n"
    assert run_node(package, example_server, "build/examples/turn.js") == "book_title says: Opticks\n"
    descriptors = str(ROOT / "proto" / "reasond.binpb")
    assert (
        run_node(package, example_server, "build/examples/grpc_js.js", descriptors)
        == "1 started\n2 iteration\n3 completed\n"
    )


def test_the_entry_for_browsers_streams_leaves_and_tells_reasons(package: Path, example_server: Listening) -> None:
    told = run_node(package, example_server, "build/tests/web.js", example_server.grpc, example_server.token)
    assert json.loads(told) == {
        "answer": "36",
        "sequences": [1, 2, 3],
        "rest": [2, 3],
        "reason": "INVALID_REQUEST",
        "violations": ["task.query"],
    }
