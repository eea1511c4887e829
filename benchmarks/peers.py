"""Measure what a call costs on its way to a model: through reasond, and through LiteLLM's proxy (and optillm).

Prints a table and writes results/peers.json beside this file. All sides use one upstream process that answers at once,
receive the same question of 2 KB and return its answer of 2 KB. Each is its own process on one processor; the load
client (loading.py) and the upstream have the other. Rounds alternate between the sides:

    one caller     latencies; the added latency is that of the side minus that of the same call straight to the upstream
    16 callers     calls per second, and processor time per call

reasond runs as in production: from wheels in an environment with the extra uvloop, tokens verified, access log on,
chain_of_thought, executions kept in memory; it is called over gRPC and over JSON-RPC. It always asks the upstream for a
stream; the others ask for a whole answer. LiteLLM's proxy has one worker, a random key and no database. optillm
(strategy `none`) takes several gigabytes, so it is measured only with --optillm; else its figures are those of an
earlier measurement, and marked as such.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import socket
import statistics
import tempfile
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError

from benchmarks.loading import GrpcCall, HttpCall, http_post, load
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.peer_environments import LITELLM, OPTILLM, Installed, install_peer, installed_ours
from benchmarks.processes import Running, end_children_on_sigterm, environment, reasond, start_program
from benchmarks.upstream import running_upstream, text_of
from reasond.v1 import reasoning_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RESULTS = Path(__file__).resolve().parent / "results" / "peers.json"
PACKAGES = ("reasond-server", "grpcio", "openai", "aiohttp", "httptools")
PATH: Final = "/reasond.v1.ReasoningService/Reason"
QUESTION_BYTES = ANSWER_BYTES = 2048
MODEL: Final = f"fake?bytes={ANSWER_BYTES}"
ROUNDS: Final = 5
CALLERS: Final = 16
MEGA: Final = 1_000_000
DIRECT, OVER_GRPC, OVER_JSON = "direct", "reasond, gRPC", "reasond, JSON-RPC"
PROXY, OPTIMIZER = "LiteLLM proxy", "optillm"
# Measured on a machine of the same kind in November 2026 (version 0.4.0, strategy none), not by this program.
QUOTED: Final = {OPTIMIZER: {"per_second": 50.0, "p50_ms": 19.6, "idle_mb": 1078.0, "installed_mb": 7600.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to the model: address, call, calls per figure, and its process (None: the upstream)."""

    target: str
    call: GrpcCall | HttpCall
    alone: int
    together: int
    running: Running | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one side in one round."""

    p50_ms: float
    p99_ms: float
    per_second: float
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A ratio to a peer and its bound."""

    what: str
    ratio: float
    goal: float
    is_at_least: bool
    is_quoted: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the bound holds."""
        return self.ratio >= self.goal if self.is_at_least else self.ratio <= self.goal


def chat_call(path: str, model: str, key: str) -> HttpCall:
    """Return a call of Chat Completions with the question of all sides."""
    messages = [
        {"role": "system", "content": text_of(200)},
        {"role": "user", "content": text_of(QUESTION_BYTES)},
    ]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 4096, "temperature": 0.7}).encode()
    return http_post(path, body, headers=[("authorization", f"Bearer {key}")], least=ANSWER_BYTES)


def free_port() -> int:
    """Return a port that is free at the moment, for programs that do not pick one."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(url: str) -> bool:
    """Return whether a GET of `url` succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)  # noqa: PLR2004 - OK
    except (URLError, OSError):
        return False


@contextmanager
def our_sides(made: Installed, *, core: int, folder: Path, base_url: str) -> Iterator[Mapping[str, Side]]:
    """Run reasond; yield one side for each wire."""
    settings = {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": MODEL,
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__API_KEY_ENV": "",
    }
    request = reasoning_service_pb2.ReasonRequest()
    request.task.query, request.task.strategy = text_of(QUESTION_BYTES), "chain_of_thought"
    params = {"query": text_of(QUESTION_BYTES), "strategy": "chain_of_thought"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}).encode()
    with reasond(made.program("reasond"), core=core, folder=folder, settings=settings) as serving:
        over_grpc = GrpcCall(
            path=PATH, metadata=serving.metadata, message=request.SerializeToString(), least=ANSWER_BYTES
        )
        over_json = http_post("/api/v1/jsonrpc", body, headers=serving.metadata, least=ANSWER_BYTES)
        yield {
            OVER_GRPC: Side(target=serving.grpc, call=over_grpc, alone=400, together=1200, running=serving.running),
            OVER_JSON: Side(target=serving.http, call=over_json, alone=400, together=1200, running=serving.running),
        }


@contextmanager
def litellm_side(made: Installed, *, core: int, folder: Path, base_url: str) -> Iterator[Mapping[str, Side]]:
    """Run LiteLLM's proxy with one worker."""
    key, port = f"sk-{secrets.token_hex(16)}", free_port()
    known = {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": "none"}
    config = folder / "litellm.json"  # JSON is YAML
    config.write_text(json.dumps({"model_list": [{"model_name": "bench", "litellm_params": known}]}), encoding="utf-8")
    environ = environment(LITELLM_MASTER_KEY=key, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_TELEMETRY="False")
    command = [made.program("litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with start_program(
        [*command, "--num_workers", "1"],
        core=core,
        folder=folder,
        environ=environ,
        is_ready=lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"),
    ) as running:
        call = chat_call("/v1/chat/completions", "bench", key)
        yield {PROXY: Side(target=f"127.0.0.1:{port}", call=call, alone=120, together=240, running=running)}


@contextmanager
def optillm_side(made: Installed, *, core: int, folder: Path, base_url: str) -> Iterator[Mapping[str, Side]]:
    """Run optillm, which forwards calls of this model name unchanged."""
    key, port = secrets.token_hex(16), free_port()
    environ = environment(OPENAI_API_KEY="none", OPTILLM_API_KEY=key)
    command = [made.program("optillm"), "--approach", "none", "--base-url", base_url, "--port", str(port)]
    with start_program(
        [*command, "--optillm-api-key", key],
        core=core,
        folder=folder,
        environ=environ,
        is_ready=lambda: answers(f"http://127.0.0.1:{port}/health"),
    ) as running:
        call = chat_call("/v1/chat/completions", MODEL, key)
        yield {OPTIMIZER: Side(target=f"127.0.0.1:{port}", call=call, alone=60, together=160, running=running)}


async def measure_one(side: Side) -> Figures:
    """Measure one side: first with one caller, then with several."""
    alone = await load(side.target, side.call, callers=1, total=side.alone)
    before = side.running.cpu_s() if side.running else 0.0
    together = await load(side.target, side.call, callers=CALLERS, total=side.together)
    cpu_s = side.running.cpu_s() - before if side.running else 0.0
    return Figures(
        p50_ms=alone.percentile_ms(50),
        p99_ms=alone.percentile_ms(99),
        per_second=together.per_second,
        cpu_ms=1000 * cpu_s / side.together,
    )


async def rounds_of(sides: Mapping[str, Side], rounds: int) -> list[dict[str, Figures]]:
    """Measure all sides in turn after a warm-up of each; every other round is in reverse order."""
    for name, side in sides.items():
        print(f"warming {name}", flush=True)
        await load(side.target, side.call, callers=CALLERS, total=side.alone // 2)
    names = list(sides)
    figures = []
    for number in range(rounds):
        figures.append({name: await measure_one(sides[name]) for name in names[:: 1 if number % 2 else -1]})
        print(f"round {number + 1} of {rounds}", flush=True)
    return figures


def added_ms(one: Mapping[str, Figures], name: str) -> float:
    """Return the milliseconds that a side adds to the call."""
    return one[name].p50_ms - one[DIRECT].p50_ms


def row_of(name: str, rounds: Sequence[Mapping[str, Figures]], memory: tuple[float, float]) -> dict[str, Any]:
    """Return the medians of one side; `memory` is its resident memory before and after the load."""

    def median(key: str) -> float:
        return float(statistics.median(asdict(one[name])[key] for one in rounds))

    return {
        "side": name,
        "p50_ms": round(median("p50_ms"), 3),
        "p99_ms": round(median("p99_ms"), 3),
        "added_p50_ms": round(statistics.median(added_ms(one, name) for one in rounds), 3),
        "added_p99_ms": round(statistics.median(one[name].p99_ms - one[DIRECT].p99_ms for one in rounds), 3),
        "per_second": round(median("per_second"), 1),
        "cpu_ms": round(median("cpu_ms"), 3),
        "idle_mb": round(memory[0], 1),
        "loaded_mb": round(memory[1], 1),
    }


def goals_of(rounds: Sequence[Mapping[str, Figures]], rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """Return reasond's goals on both wires."""
    held = {row["side"]: row for row in rows}
    goals = []
    for ours in (OVER_GRPC, OVER_JSON):
        latency = statistics.median(added_ms(one, ours) / added_ms(one, PROXY) for one in rounds)
        goals.append(Goal(what=f"{ours}: added p50 over LiteLLM's", ratio=latency, goal=0.10, is_at_least=False))
        speed = statistics.median(one[ours].per_second / one[PROXY].per_second for one in rounds)
        goals.append(Goal(what=f"{ours}: calls per second over LiteLLM's", ratio=speed, goal=10, is_at_least=True))
        other = [one[ours].per_second / per_second_of_optillm(one) for one in rounds]
        is_quoted = OPTIMIZER not in rounds[0]
        what = f"{ours}: calls per second over optillm's"
        goals.append(Goal(what=what, ratio=statistics.median(other), goal=25, is_at_least=True, is_quoted=is_quoted))
    for when in ("idle_mb", "loaded_mb"):
        share = held[OVER_GRPC][when] / held[PROXY][when]
        what = f"resident memory over LiteLLM's, {'when ready' if when == 'idle_mb' else 'after the load'}"
        goals.append(Goal(what=what, ratio=share, goal=0.30, is_at_least=False))
    return goals


def per_second_of_optillm(one: Mapping[str, Figures]) -> float:
    """Return optillm's calls per second in this round, or else those of the quoted measurement."""
    return one[OPTIMIZER].per_second if OPTIMIZER in one else QUOTED[OPTIMIZER]["per_second"]


def print_table(rows: Sequence[Mapping[str, Any]], goals: Sequence[Goal]) -> None:
    """Print the figures as a table."""
    for row in rows:
        print(
            f"{row['side']:<18} p50 {row['p50_ms']:7.2f} ms (added {row['added_p50_ms']:6.2f}), "
            f"p99 {row['p99_ms']:7.2f} ms, {row['per_second']:8.1f} calls/s, "
            f"{row['cpu_ms']:6.2f} ms CPU, {row['idle_mb']:6.1f} -> {row['loaded_mb']:6.1f} MB"
        )
    for goal in goals:
        sign, quoted = (">=" if goal.is_at_least else "<="), " (quoted)" if goal.is_quoted else ""
        verdict = "met" if goal.is_met else "MISSED"
        print(f"goal: {goal.what}{quoted} {sign} {goal.goal:g}: {goal.ratio:.3f}, {verdict}")


def report_of(rounds: int, environments: Mapping[str, Installed]) -> dict[str, Any]:
    """Start all sides, measure them, and return the report."""
    core, other = two_processors()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base_url = stack.enter_context(running_upstream(core=other))
        target = base_url.removeprefix("http://").removesuffix("/v1")
        sides = {
            DIRECT: Side(
                target=target, call=chat_call("/v1/chat/completions", MODEL, "none"), alone=1000, together=4000
            )
        }
        openings = {"reasond": our_sides, PROXY: litellm_side, OPTIMIZER: optillm_side}
        for name, made in environments.items():
            place = folder / name.replace(" ", "-")
            place.mkdir()
            sides |= stack.enter_context(openings[name](made, core=core, folder=place, base_url=base_url))
        pin(other)
        idle = {name: side.running.resident_mb() if side.running else 0.0 for name, side in sides.items()}
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            figures = runner.run(rounds_of(sides, rounds))
        loaded = {name: side.running.resident_mb() if side.running else 0.0 for name, side in sides.items()}
    rows = [row_of(name, figures, (idle[name], loaded[name])) for name in sides]
    goals = goals_of(figures, rows)
    print_table(rows, goals)
    return {
        "circumstances": circumstances(PACKAGES),
        "rounds": rounds,
        "callers": CALLERS,
        "rows": rows,
        "goals": [{**asdict(goal), "is_met": goal.is_met} for goal in goals],
        "installed": {name: {**asdict(made), "python": made.python.name} for name, made in environments.items()},
        "quoted": {name: figures for name, figures in QUOTED.items() if name not in environments},
    }


def main() -> None:
    """Make the environments, measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--optillm", action="store_true", help="measure optillm too, which takes 7.6 GB of disk")
    options = parser.parse_args()
    end_children_on_sigterm()
    environments = {"reasond": installed_ours(), PROXY: install_peer(LITELLM)}
    if options.optillm:
        environments[OPTIMIZER] = install_peer(OPTILLM)
    report = report_of(max(1, options.rounds), environments)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
