"""`reasond eval` as a process that is killed again and again: it goes on, and no model call is made twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from reasond_server.testing import FunctionModel, running_server_in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.llm.model import ChatRequest

LIMIT_S = 60.0
QUESTIONS = 60
KILLS = 10


class CountingAdder:
    """Adds; sets `reached` at the call whose number is `at`."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = 0
        self.reached = threading.Event()

    def __call__(self, request: ChatRequest) -> str:
        self.calls += 1
        if self.calls >= self.at:
            self.reached.set()
        number = int(request.messages[-1].content.partition("What is ")[2].split()[0])
        return f"<answer>{number + 1}</answer>"

    def expect(self, calls: int) -> None:
        self.reached.clear()
        self.at = self.calls + calls


def test_an_evaluation_that_is_killed_ten_times_makes_the_calls_of_one(tmp_path: Path) -> None:
    adder, file = CountingAdder(), tmp_path / "set.jsonl"
    rows = [{"question": f"What is {n} and 1?", "answer": str(n + 1)} for n in range(QUESTIONS)]
    file.write_text("\n".join(map(json.dumps, rows)))
    ways = ("--way", "direct", "--way", "chain_of_thought", "--way", "self_consistency:samples=3")
    command = [sys.executable, "-m", "reasond_server", "eval", str(file), *ways, "--report", str(tmp_path / "r.md")]
    with running_server_in_thread(model=FunctionModel(adder, name="adder")) as server:
        environ = {**os.environ, "REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token}
        for _ in range(KILLS):
            adder.expect(calls=7)
            process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            assert adder.reached.wait(LIMIT_S)
            process.kill()
            process.wait()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        again = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, again.returncode) == (0, 0), done.stderr
    assert adder.calls == QUESTIONS * (1 + 1 + 2)
    assert done.stderr.count("60 of 60") == 3
    assert "| self_consistency:samples=3 | 60 | 60 | 100.0% (94% to 100%) |" in (tmp_path / "r.md").read_text()
