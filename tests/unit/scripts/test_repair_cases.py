"""Cases of repairs, in a process of their own because they fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import json
from benchmarks.repair_cases import Laboratory, build_cases, key_of_source
from benchmarks import repair_cases
subjects = [one for one in repair_cases.read_subjects() if one.names == ("capwords",)]
repair_cases.read_subjects = lambda: subjects
laboratory = Laboratory()
rows = []
for faults in (1, 2):
    for case in build_cases(laboratory, faults=faults):
        every = {**case.visible, **case.held_out}
        fixed = key_of_source(case.stages[-1])
        rows.append({
            "faults": case.faults,
            "failing": [len(laboratory.list_failing(stage, case.visible)) for stage in case.stages],
            "failing_repaired": laboratory.list_failing(case.stages[-1], every),
            "wrong": [len({key_of_source(one) for one in wrong} - {fixed}) for wrong in case.wrong],
        })
hostile = ["while True: pass", "x = [0] * 10**11", "import os; os._exit(0)", "raise SystemExit", "("]
print(json.dumps({"rows": rows, "hostile": [laboratory.run(source, ["1"]) for source in hostile]}))
"""


def test_cases_fail_before_their_repair_and_pass_after_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {row["faults"] for row in found["rows"]} == {1, 2}
    for row in found["rows"]:
        *harmed, repaired = row["failing"]
        assert all(harmed)
        assert repaired == 0
        assert not row["failing_repaired"]
        assert all(count >= 5 for count in row["wrong"])
    assert found["hostile"] == [{}] * 5
