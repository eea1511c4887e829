"""Each import contract of .importlinter refuses what it forbids; each case breaks one contract in a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

CASES = {
    "reasoning/intruder.py": [
        ("import grpc", "Only grpc_api imports grpc"),
        ("import google.protobuf.message", "Only grpc_api imports grpc"),
        ("import reasond.v1.errors_pb2", "Only grpc_api imports grpc"),
        ("import uvicorn", "Only http_api imports uvicorn"),
        ("import rich", "Only cli imports typer"),
        ("import jwt", "Only access imports jwt"),
        ("import pypdf", "Only documents.document_reader imports pypdf"),
        ("import openai", "Only llm.openai imports openai"),
        ("import aiohttp", "Only llm.openai imports openai"),
        ("import prometheus_client", "Only telemetry imports prometheus_client"),
        ("import reasond_server.config", "Settings reach the core"),
        ("import reasond_server.http_api.json_mapping", "Rooms import downwards"),
    ],
    "strategies/intruder.py": [("import reasond_server.strategies.chain_of_thought", "No strategy imports another")],
    "strategies/react/intruder.py": [
        ("import reasond_server.strategies.tree_of_thought.prompts", "No strategy imports another")
    ],
    "cli/commands/intruder.py": [("import reasond_server.cli.commands.serve", "No command imports another")],
    "search/intruder.py": [("import reasond_server.llm.model", "The search knows neither prompts nor models")],
    "llm/model.py": [("import reasond_server.llm.intruder", "No import cycles")],
    "llm/intruder.py": [("import reasond_server.llm.model", "No import cycles")],
    "newroom.py": [("", "Rooms import downwards")],
}


@pytest.mark.slow
def test_each_contract_refuses_what_it_is_for(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copytree(ROOT / "clients" / "python" / "src", tmp_path / "client")
    shutil.copy(ROOT / ".importlinter", tmp_path)
    for name, lines in CASES.items():
        with (tmp_path / "src" / "reasond_server" / name).open("a", encoding="utf-8") as source:
            source.write("".join(f"\n{line}" for line, _ in lines))
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path / 'client'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    told = " ".join(done.stdout.split())
    for name, lines in CASES.items():
        module = f"reasond_server.{name.removesuffix('.py').replace('/', '.')}"
        for line, contract in lines:
            imported = line.removeprefix("import ")
            assert f"{contract}" in told
            if imported and "cycles" not in contract:
                assert f"{module} -> {imported.partition('.')[0]}" in told, f"{line} in {module}\n{done.stdout}"
    assert "- reasond_server.newroom" in told
    assert ".intruder -> .model" in told or ".model -> .intruder" in told
