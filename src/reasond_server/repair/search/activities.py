"""The port of a repair to the outside: what it asks models, critics and git, whichever engine works it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from reasond_server.repair.search.prompts import PreviousCandidate
from reasond_server.types import NOTHING, Json, Usage
from reasond_server.types.repairs import CandidateStatus
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique


@value
class RepairCandidate:
    """One candidate. `changes` are new contents by path, None for a deleted file; empty where `problem` is set.

    Attributes:
        candidate_id: unique in the repair.
        number: counts the replies of the repair from 1.
        parent_id: the candidate that it was made from; empty for the original.
        depth: its distance from the original, at least 1.
        status: PROPOSED or INVALID; the search finds duplicates.
        key: equal for equal code.
        changes: the files that differ from the original.
        diff: the changes as a unified diff, or the plan.
        thought: what the model wrote besides.
        problem: why an INVALID reply cannot be used, for the model and the caller.
        model: who wrote it, where several models stand behind one name.
        usage: what the reply cost.
        others: further candidates of the same reply, which cost nothing more.
    """

    # For engines, which hand candidates on as JSON.
    __pydantic_config__: ClassVar[Json] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}

    candidate_id: str
    number: int
    parent_id: str
    depth: int
    status: CandidateStatus = CandidateStatus.PROPOSED
    key: str = ""
    changes: Mapping[str, bytes | None]
    diff: str = ""
    thought: str = ""
    problem: str = ""
    usage: Usage = NOTHING
    model: str = ""
    elapsed_s: float = 0.0
    others: Sequence[RepairCandidate] = ()


@value
class CandidateOrder:
    """The order of one candidate: its place in the search, and how it is sampled.

    `unread` says why an earlier reply could not be used; empty if all could. `notes` tell of failed candidates.
    """

    candidate_id: str
    number: int
    parent_id: str
    depth: int
    temperature: float
    previous: PreviousCandidate | None = None
    unread: str = ""
    notes: str = ""


@value
class TokenBounds:
    """The most tokens of the calls for one candidate, prompts and replies: made from the original, or from another.

    If the counter only estimates (not `is_exact`), the bytes of that other one come on top of `refined`, in each call.
    """

    original: int
    refined: int
    is_exact: bool = True

    def bound_tokens(self, order: CandidateOrder, *, calls: int) -> int:
        """Return the most tokens of a candidate that takes so many calls at most."""
        if order.previous is None and not order.unread and not order.notes:
            return self.original
        if self.is_exact:
            return self.refined
        shown = "" if order.previous is None else f"{order.previous.diff}{order.previous.evidence}"
        return self.refined + calls * len(f"{shown}{order.unread}{order.notes}".encode())


@value
class PatchCheck:
    """The patch of a candidate; `problem` says why it does not apply, empty if it does."""

    patch: str
    problem: str = ""


class RepairActivities(Protocol):
    """What a repair does outside; each call happens once per execution, whatever process goes on with it.

    Every method may raise a ReasondError. A failed model call raises a ModelError.
    """

    @property
    def warnings(self) -> Sequence[str]:
        """What the caller should know of what the critics did so far."""

    @property
    def checks_run(self) -> int:
        """Runs of checks so far, those of earlier lives included."""

    @property
    def check_cpu_s(self) -> float:
        """The processor time of the checks in seconds."""

    @property
    def worst_cost(self) -> Mapping[str, float]:
        """The most that judging one candidate takes, by the names of resources in `search.Cost`."""

    async def measure_baseline(self) -> Baseline:
        """Run all checks on the original code, twice."""

    def bound_tokens(self, order: CandidateOrder) -> int:
        """Return the most tokens that `generate` takes for it."""

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        """Ask the model for a candidate and read its reply."""

    async def judge(self, candidate: RepairCandidate) -> Critique:
        """Let the critics judge a candidate."""

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        """Make the patch of a candidate, and see whether it applies and gives exactly its files."""

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        """Run the held-out checks on a candidate; empty if there are none."""


class PlanActivities(Protocol):
    """What planning does outside; see `RepairActivities`."""

    async def prepare_plan(self) -> None:
        """Choose what the prompts show."""

    async def write_plan(self, order: CandidateOrder) -> RepairCandidate:
        """Ask the model for a plan; `diff` holds it."""

    async def score_plans(self, judge: int, plans: Sequence[str]) -> Sequence[float | None]:
        """Ask judge number `judge`, from 1, for a score of each plan, 0-1; None where it gave none."""


class AllActivities(RepairActivities, PlanActivities, Protocol):
    """What both goals do outside."""
