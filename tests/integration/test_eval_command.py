"""`reasond eval` as a process: what it cannot do is said before anything is paid, and what failed is no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from reasond_server.testing import FunctionModel, running_server_in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.llm.model import ChatRequest

LIMIT_S = 60.0


def test_what_cannot_be_written_costs_nothing_and_what_spent_nothing_is_told_and_asked_again(tmp_path: Path) -> None:
    calls: list[ChatRequest] = []

    def answer(request: ChatRequest) -> str:
        calls.append(request)
        return "<answer>2</answer>"

    (tmp_path / "set.jsonl").write_text(json.dumps({"question": "What is 1 and 1?", "answer": "2"}))
    command = [sys.executable, "-m", "reasond_server", "eval", str(tmp_path / "set.jsonl"), "--way", "direct"]
    with running_server_in_thread(model=FunctionModel(answer, name="adder")) as server:
        environ = {**os.environ, "REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token}

        def run(*options: str) -> tuple[int, str]:
            done = subprocess.run(
                [*command, *options], env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            return done.returncode, done.stdout + done.stderr

        code, told = run("--report", str(tmp_path / "none" / "report.md"))
        assert (code, len(calls)) == (2, 0)
        assert "does not exist" in told
        code, told = run("--model", "none")
        assert (code, len(calls)) == (2, 0)
        assert "must be a backend that is offered here" in told
        code, told = run("--max-total-tokens", "1")
        assert (code, len(calls)) == (1, 0)
        assert "1 of 1 trials failed before anything was spent" in told
        assert "The budget does not cover" in told
        code, told = run()
        assert (code, len(calls)) == (0, 1)
        assert "1 of 1" in told
