"""A reviewer takes the first patch of the ranking that pleases: `python next_patch.py FOLDER "pytest -q"`.

The server needs `[repair] enabled` and an environment named `python`; REASOND_TARGET and REASOND_TOKEN lead to it. The
patch is written to stdout, so it can be piped into `git apply`.
"""

import shlex
import sys

import reasond
from reasond import Check, CheckRole, ResultFormat

LIMIT_S = 1800.0


def ask(patch: reasond.RankedPatch) -> bool:
    """Show a patch on the terminal and ask whether it pleases."""
    checked = reasond.Verification.Name(patch.verification).removeprefix("VERIFICATION_").lower()
    print(f"{patch.patch}\nscore {patch.score:.0f}, checked with {checked}; take it? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def main() -> None:
    folder, command = sys.argv[1:]
    check = Check(
        name="test",
        role=CheckRole.CHECK_ROLE_REPRODUCE,
        argv=shlex.split(command),
        format=ResultFormat.RESULT_FORMAT_EXIT_CODE,
    )
    with reasond.Client.from_env() as client:
        snapshot = client.upload_snapshot(folder)
        task = reasond.repair_task(snapshot_id=snapshot.snapshot_id, environment="python", checks=[check])
        result = client.repair(task, timeout_s=LIMIT_S)
    for warning in result.warnings:
        print(f"note: {warning}", file=sys.stderr)
    for patch in result.ranking:
        if ask(patch):
            sys.stdout.write(patch.patch)
            return
    sys.exit("no patch was taken")


if __name__ == "__main__":
    main()
