"""Deliberately broken code, to check that the simulation finds it: `python -m tests.simulation.mutations`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 900.0
SEEDS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One place of the code and its replacement."""

    name: str
    path: str
    old: str
    new: str


MUTATIONS: Final = (
    Mutation(
        name="append-without-fence",
        path="eventlog/contract.py",
        old="if part.fence != head.fence or head.state is ExecutionState.SUSPENDED:",
        new="if False:",
    ),
    Mutation(
        name="resume-off-by-one",
        path="runs/followers.py",
        old="events = await self._store.read(self._tenant, self._id, after=after, limit=self._page)",
        new="events = await self._store.read(self._tenant, self._id, after=after + 1, limit=self._page)",
    ),
    Mutation(
        name="told-before-the-commit",
        path="eventlog/log.py",
        old="        self._add(_Pending(stored, shown, estimate_size(shown)))",
        new="        self._add(_Pending(stored, None, size := estimate_size(shown)))\n"
        "        self.events.committed = sequence\n        self.events._tail.append(shown)\n"
        "        self.events._tail_sizes.append(size)\n        self._waiters.wake()\n        self.on_change()",
    ),
    Mutation(
        name="calls-not-found-on-record",
        path="runs/run_journal.py",
        old="events = self._call(request, key) if kept is None else",
        new="events = self._call(request, key) if True else",
    ),
    Mutation(
        name="tool-begun-before-it-is-on-record",
        path="runs/effects.py",
        old='            await journal.keep_safely(key, "{}")',
        new='            journal.note(key, "{}")',
    ),
    Mutation(
        name="two-holders-of-a-request-id",
        path="eventlog/stored/sqlite_store.py",
        old="            return Claim(execution_id=holder, digest=digest)",
        new="            del holder, digest",
    ),
    Mutation(
        name="steps-appended-again",
        path="reasoning/strategy_work.py",
        old="        if is_known:\n            run.trace",
        new="        if False:\n            run.trace",
    ),
    Mutation(
        name="calls-not-held",
        path="llm/metered_model.py",
        old="            if self._wait_for_lease is not None:",
        new="            if False:",
    ),
    Mutation(
        name="open-calls-not-closed",
        path="runs/run.py",
        old="            self.stop(Trigger.FENCE)",
        new="            pass",
    ),
    Mutation(
        name="re-entry-after-any-event",
        path="eventlog/contract.py",
        old="return event is None or execution.last_sequence == event.sequence - 1",
        new="return True",
    ),
    Mutation(
        name="re-entry-with-any-etag",
        path="turns/handoff.py",
        old="    if handoff.etag != reentry.etag:",
        new="    if False:",
    ),
    Mutation(
        name="mode-changed-in-a-commit-of-its-own",
        path="turns/loop.py",
        old="            self._append(ModeChange(",
        new="            asyncio.get_running_loop().call_later(0.001, self._append, ModeChange(",
    ),
    Mutation(
        name="same-re-entry-not-recognised",
        path="turns/handoff.py",
        old="if isinstance(logged.event, Reentered) and logged.event.etag == reentry.etag:",
        new="if False:",
    ),
    Mutation(
        name="blocks-cleared-at-emission",
        path="turns/turn_work.py",
        old="        work.most_usage = _read_reservation(recovery, work.progress.model_calls)",
        new='        work.providers._states["turn_blocks"] = {}',
    ),
    Mutation(
        name="tool-of-a-turn-begun-before-it-is-on-record",
        path="turns/loop.py",
        old="        await self.run.log.flush()\n        await self.run.effects.require_lease()",
        new="        await self.run.effects.require_lease()",
    ),
    Mutation(
        name="tool-of-unknown-outcome-run-again",
        path="turns/next_step.py",
        old="    if one.state is LedgerState.STARTED and not tools.is_idempotent(one.call.name):",
        new="    if False:",
    ),
    Mutation(
        name="lost-call-not-charged",
        path="turns/turn_work.py",
        old="charge_again(before + lost if lost.model_calls or lost.total_tokens else before)",
        new="charge_again(before)",
    ),
    Mutation(
        name="waiting-counts-as-work",
        path="runs/run_factory.py",
        old="        if is_pause(logged.event)",
        new="        if False",
    ),
    Mutation(
        name="session-freed-by-one-who-lost-the-turn",
        path="runs/run_driver.py",
        old="elif execution.request_id and run.log.error is None and _has_failed_before_cost(run):",
        new="elif execution.request_id and run.log.error is not None:",
    ),
    Mutation(
        name="checks-not-found-on-record",
        path="repair/search/repair_site.py",
        old="        if effect.recorded is not None:\n            return effect.recorded\n",
        new="",
    ),
    Mutation(
        name="candidates-in-the-order-of-their-ends",
        path="repair/search/candidate_search.py",
        old="        self._waiting[place] = make\n        while self._next in self._waiting:",
        new="        if make is not None:\n            self._emit(make())\n        while self._next in self._waiting:",
    ),
)


def find_violation(mutation: Mutation, *, seeds: int = SEEDS) -> str:
    """Return the first lines that the simulation prints with this mutation; empty if it finds nothing."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "reasond_server"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "reasond_server", source, ignore=ignored)
        path = source / mutation.path
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise LookupError(f"{mutation.name}: {mutation.path} does not have this once any more: {mutation.old}")
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        # A separate process: a broken runner may hang, and the time limit of the tests must not apply to it.
        run = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seeds", f"0:{seeds}", "--workers", "1", "--until-failure"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": name},
            timeout=LIMIT_S,
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode not in {0, 1}:
        return f"did not end: {run.stderr.strip().splitlines()[-1:]}"
    return "" if run.returncode == 0 else run.stdout


def main(names: Sequence[str] = ()) -> int:
    """Try the named mutations, or all; return 1 if one was not found, else 0."""
    missed = 0
    for mutation in (one for one in MUTATIONS if not names or one.name in names):
        story = find_violation(mutation)
        missed += not story
        lines = story.splitlines()[:2]
        sys.stdout.write(f"{mutation.name}: {'; '.join(lines)[:220] if lines else 'NOT FOUND'}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
