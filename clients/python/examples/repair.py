"""Has failing code repaired; the server needs [repair] and an environment named "python"."""

import reasond

files = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\nassert add(2, 3) == 5\n",
}
check = reasond.Check(name="sum", argv=["python3", "test_calc.py"], format=reasond.ResultFormat.RESULT_FORMAT_EXIT_CODE)
task = reasond.repair_task("The sum is wrong.", files=files, environment="python", checks=[check])
with reasond.Client.from_env() as client:
    repair = client.repair(task, timeout_s=3600)
    print(repair.patch if repair.is_accepted else repair.warnings)
