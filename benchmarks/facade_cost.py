"""Measure a chat completion, a response and a message beside the same call over JSON-RPC: processor time per call.

Prints a table and writes results/facade_cost.json beside this file. The server, the question, the model and the load
are those of `benchmarks.jsonrpc_cost`. Every round measures all sides, in turn; the figure is the median over the
rounds of the ratio within a round, so that a busy machine burdens both.

    JSON-RPC           reasoning.execute, answered with its trace
    chat completions   POST /v1/chat/completions of the same question, with the model `reasond/chain_of_thought`
    responses          POST /v1/responses likewise
    messages           POST /v1/messages likewise
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.jsonrpc_cost import CALLERS, CALLS, MODULE, PACKAGES, RPC_PATH, measure_one, question
from benchmarks.loading import http_post
from benchmarks.machine import make_goal, new_event_loop, pin, two_processors, write_report
from benchmarks.serving import running
from benchmarks.unary import ANSWER_BYTES, QUESTION_BYTES
from benchmarks.upstream import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.jsonrpc_cost import Round

RESULTS = Path(__file__).resolve().parent / "results" / "facade_cost.json"
CHAT_PATH: Final = "/v1/chat/completions"
ROUNDS: Final = 7
RESPONSES_PATH: Final = "/v1/responses"
MESSAGES_PATH: Final = "/v1/messages"
JSONRPC, CHAT, RESPONSES, MESSAGES = "JSON-RPC", "chat completions", "responses", "messages"
GOAL: Final = 1.25


def chat() -> bytes:
    """Return the chat of all callers."""
    messages = [{"role": "user", "content": text_of(QUESTION_BYTES)}]
    return json.dumps({"model": "reasond/chain_of_thought", "messages": messages}).encode()


def response() -> bytes:
    """Return the request of a response."""
    return json.dumps({"model": "reasond/chain_of_thought", "input": text_of(QUESTION_BYTES)}).encode()


def message() -> bytes:
    """Return the request of a message."""
    return json.dumps({**json.loads(chat()), "max_tokens": 4096}).encode()


def rounds_of(stack: ExitStack, options: argparse.Namespace) -> list[Round]:
    """Start the server and measure all sides `options.rounds` times, every other round in reverse order."""
    core, other = two_processors()
    pin(other)
    server = stack.enter_context(running(MODULE, "reasond", core=core))
    runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
    sides = {
        name: http_post(path, body, headers=server.metadata, least=ANSWER_BYTES)
        for name, path, body in (
            (JSONRPC, RPC_PATH, question()),
            (CHAT, CHAT_PATH, chat()),
            (RESPONSES, RESPONSES_PATH, response()),
            (MESSAGES, MESSAGES_PATH, message()),
        )
    }
    target, calls = server.told["http"], int(CALLS * options.scale)
    return [
        {
            name: runner.run(measure_one(server, target, sides[name], calls))
            for name in list(sides)[:: 1 if number % 2 else -1]
        }
        for number in range(options.rounds)
    ]


def rows_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the medians; a ratio compares a side with JSON-RPC in the same round."""
    rows = []
    for name in (JSONRPC, CHAT, RESPONSES, MESSAGES):
        found = [asdict(one[name]) for one in rounds]
        medians = {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}
        ratio = statistics.median(one[name].cpu_us / one[JSONRPC].cpu_us for one in rounds)
        rows.append({"side": name, **medians, "cpu_ratio": round(ratio, 3)})
    return rows


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, as a share of the usual number")
    options = parser.parse_args()
    with ExitStack() as stack:
        rows = rows_of(rounds_of(stack, options))
    for row in rows:
        print(
            f"{row['side']:<17} {row['cpu_us']:7.1f} us CPU ({row['cpu_ratio']:.2f} of JSON-RPC) "
            f"{row['per_second']:8,.0f}/s  p50 {row['p50_ms']:.3f} p99 {row['p99_ms']:.3f} ms"
        )
    goals = [
        make_goal(f"processor time of {row['side']} over JSON-RPC's", "at most", GOAL, row["cpu_ratio"])
        for row in rows[1:]
    ]
    load_of = {"rounds": options.rounds, "callers": CALLERS, "question_bytes": QUESTION_BYTES}
    write_report(RESULTS, PACKAGES, load=load_of, rows=rows, goals=goals)


if __name__ == "__main__":
    main()
