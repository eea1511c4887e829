"""Simulate servers on one or several PostgreSQL databases over a day, in virtual time.

Prints a table and writes results/fleet.json beside this file. The costs are those that `benchmarks.one_postgres` has
measured. Executions come at random, three times as many at the peak of the day as on average; each writes its events
evenly over its duration. Each server commits one transaction at a time with all that waits, as `eventlog/writer.py`
does; a database works on as many transactions at once as it has processors, and its disk takes no time. Of each hour as
long is simulated as some 10,000 events take. Notices are heard by all servers of a database, and every server looks for
what is due.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.machine import write_report
from benchmarks.one_postgres import EVENTS
from benchmarks.one_postgres import RESULTS as COSTS

if TYPE_CHECKING:
    from pathlib import Path

RESULTS: Final = COSTS.with_name("fleet.json")
HOURS: Final = 24
SAMPLED_EVENTS: Final = 10_000
DAY_S: Final = 86_400.0
PEAK: Final = 3.0
MEAN_DURATION_S: Final = 20.0
# Statements of an idle server in a second: leases, recovery, waiting turns, the clock, webhooks.
LOOKS_PER_S: Final = 2.0
DURATION_SPREAD: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of the database's processor for a transaction, for an event in it, a notice to one server, a look."""

    transaction_s: float
    event_s: float
    notice_s: float
    look_s: float

    @classmethod
    def read(cls, path: Path = COSTS) -> Costs:
        """Return what was measured: an event in a batch costs its share of the transaction, and its own."""
        found = json.loads(path.read_text("utf-8"))
        alone, together = (found["batches"][each]["database_us_per_event"] / 1e6 for each in ("1", "64"))
        transaction_s = max(0.0, alone - together) * 64 / 63
        few, many = min(found["listeners"], key=int), max(found["listeners"], key=int)
        heard = [found["listeners"][each]["database_us_per_event"] / 1e6 for each in (few, many)]
        # One transaction with a notice has eight events there.
        notice_s = max(0.0, (heard[1] - heard[0]) * EVENTS / (int(many) - int(few)))
        return cls(
            transaction_s=transaction_s,
            event_s=max(0.0, alone - transaction_s),
            notice_s=notice_s,
            look_s=found["reads"]["database_us_per_event"] / 1e6,
        )


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What is simulated; executions of a tenant are in one of the `databases`, each with its own processors."""

    servers: int = 100
    executions_per_day: float = 1e6
    databases: int = 1
    processors: int = 8


@dataclass(kw_only=True)
class Outcome:
    """Shares of the processors of a database that are used on average and in the busiest hour, and waits in seconds."""

    mean_share: float = 0.0
    peak_share: float = 0.0
    events_per_s_at_peak: float = 0.0
    commit_p50_s: float = 0.0
    commit_p99_s: float = 0.0
    waits_s: list[float] = field(default_factory=list, repr=False)


def simulate(fleet: Fleet, costs: Costs, *, seed: int = 1) -> Outcome:
    """Return how one of the databases fares; all are alike. The same seed gives the same outcome."""
    draw, outcome, shares = random.Random(seed), Outcome(), []  # noqa: S311 - a simulation
    for hour in range(HOURS):
        # Between nothing and twice the average would be no peak of three; a narrow bump has one.
        weight = math.exp(-(((hour - 14) / 4) ** 2)) * (PEAK - 0.35) + 0.35
        rate = fleet.executions_per_day / DAY_S * weight / fleet.databases
        sample_s = SAMPLED_EVENTS / (rate * EVENTS)
        events = _draw_events(draw, rate, sample_s)
        busy_s = _commit(fleet, costs, draw, events, outcome.waits_s if weight > PEAK - 0.5 else [])
        shares.append(busy_s / sample_s / fleet.processors)
        outcome.events_per_s_at_peak = max(outcome.events_per_s_at_peak, len(events) / sample_s)
    looks = fleet.servers * LOOKS_PER_S * costs.look_s / fleet.processors
    outcome.mean_share = sum(shares) / HOURS + looks
    outcome.peak_share = max(shares) + looks
    waits = sorted(outcome.waits_s) or [0.0]
    outcome.commit_p50_s, outcome.commit_p99_s = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    return outcome


def _draw_events(draw: random.Random, rate: float, sample_s: float) -> list[float]:
    """Return the times within `sample_s` at which events are written, in order, also by what began before."""
    times: list[float] = []
    now = -10 * MEAN_DURATION_S
    while (now := now + draw.expovariate(rate)) < sample_s:
        duration_s = draw.lognormvariate(math.log(MEAN_DURATION_S) - DURATION_SPREAD**2 / 2, DURATION_SPREAD)
        times += [at for place in range(EVENTS) if 0 <= (at := now + duration_s * place / (EVENTS - 1)) < sample_s]
    return sorted(times)


def _commit(fleet: Fleet, costs: Costs, draw: random.Random, events: list[float], waits_s: list[float]) -> float:
    """Commit the events by the servers; return the seconds of processor, and add the wait of each event."""
    pending: list[list[float]] = [[] for _ in range(fleet.servers)]
    is_busy = [False] * fleet.servers
    free_at = [0.0] * fleet.processors
    happenings: list[tuple[float, int, int, tuple[float, ...]]] = [
        (at, 0, draw.randrange(fleet.servers), ()) for at in events
    ]
    heapq.heapify(happenings)
    busy_s = 0.0
    while happenings:
        now, is_end, server, done = heapq.heappop(happenings)
        if is_end:
            is_busy[server] = False
            waits_s += [now - at for at in done]
        else:
            pending[server].append(now)
        if pending[server] and not is_busy[server]:
            batch, pending[server] = tuple(pending[server]), []
            work_s = costs.transaction_s + costs.event_s * len(batch) + costs.notice_s * fleet.servers
            start = max(now, heapq.heappop(free_at))
            heapq.heappush(free_at, start + work_s)
            busy_s, is_busy[server] = busy_s + work_s, True
            heapq.heappush(happenings, (start + work_s, 1, server, batch))
    return busy_s


CASES: Final = (
    Fleet(),
    Fleet(servers=10),
    Fleet(executions_per_day=3e6),
    Fleet(executions_per_day=1e7),
    Fleet(executions_per_day=1e7, databases=4, servers=25),
    Fleet(executions_per_day=3e7, databases=4, servers=25),
)


def main() -> None:
    """Simulate all cases, print and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.parse_args()
    costs, rows = Costs.read(), []
    for fleet in CASES:
        outcome = asdict(simulate(fleet, costs))
        del outcome["waits_s"]
        rows.append(asdict(fleet) | {name: float(f"{each:.3g}") for name, each in outcome.items()})
        print(rows[-1])
    write_report(RESULTS, ("reasond-server",), costs=asdict(costs), cases=rows)


if __name__ == "__main__":
    main()
