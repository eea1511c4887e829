"""Measure how long a health check waits during one request with a text that is hard to parse: `make bench`.

Prints a table and writes results/pathological.json beside this file. A real `reasond serve --dev` runs on loopback.
Each text is sent once as material of 2 MB for bounded_context and once as a query of 100,000 characters for
chain_of_thought. Meanwhile a process of its own calls `/healthz` ten times a second over a persistent connection. No
check should wait more than 200 ms: code that holds the interpreter blocks all callers. `--only WORD` runs the texts
whose name contains the word and writes nothing. A request ends after 20 s at most.

The same process checks a second server, which is idle: what its checks wait is the wait for a processor, which other
work on the machine causes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from benchmarks.attacks import server
from benchmarks.hostile import execute
from benchmarks.machine import circumstances

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

RESULTS: Final = Path(__file__).resolve().parent / "results" / "pathological.json"
PACKAGES: Final = ("reasond-server", "pydantic", "pydantic-core", "uvicorn", "httptools")
BOUND_MS: Final = 200.0
EVERY_S: Final = 0.1
REQUEST_S: Final = 20.0
QUIET_S: Final = 2.0
MATERIAL_BYTES: Final = 2_000_000
QUERY_CHARACTERS: Final = 100_000
NONE: Final = "none"

# Each unit is repeated until the text has its full size.
UNITS: Final[Mapping[str, str]] = {
    "less-than": "<",
    "less-than, space": "< ",
    "less-than, slash": "</",
    "less-than, line": "<\n",
    "less-than, bar": "<|",
    "less-than, letter": "<a",
    "less-than, zero width": "<\u200b",
    "wide less-than": "\uff1c",
    "wide less-than, letter": "\uff1ca",
    "begun tag": "<answer",
    "tag": "<answer>",
    "closing tag": "</think>",
    "tag with spaces": "<   /   answer >",
    "tag after many spaces": "<" + " " * 5000,
    "tag of invisible letters": "<a\u200bn\u200bs\u200bw\u200be\u200br>",
    "begun control token": "<|im_start",
    "control token": "<|im_start|>",
    "long control token": "<|" + "a" * 64,
    "begun system mark": "<<S",
    "system mark": "<<SYS>>",
    "bracket": "[",
    "begun instruction": "[/INST",
    "instruction": "[INST]",
    "neutralised": "&lt;",
    "neutralised tag": "&lt;answer>",
    "one letter": "a",
    "words": "word ",
    "spaces": " ",
    "lines": "\n",
    "paragraphs": "\n\n",
    "carriage returns": "\r\n",
    "line separators": "\u2028",
    "full stops": ". ",
    "digits": "0",
    "numbers": "1,000.5 ",
    "fences of code": "```\n",
    "quotes": '"\\',
    "combining marks": "\u0301",
    "zero width": "\u200b",
    "ligatures": "\ufdfa",
    "Chinese": "\u4e2d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One request: its outcome, its seconds, and the milliseconds of the checks during it.

    `idle_longest_ms` is the longest check of the idle server meanwhile.
    """

    text: str
    sent_as: str
    ended: str
    seconds: float
    checks: int
    median_ms: float
    longest_ms: float
    idle_longest_ms: float

    @property
    def is_met(self) -> bool:
        """Whether no check waited too long."""
        return self.longest_ms <= BOUND_MS


def fill(unit: str, *, most_bytes: int, most_characters: int) -> str:
    """Return as many of `unit` as fit into both limits."""
    return unit * max(1, min(most_bytes // len(unit.encode()), most_characters // len(unit)))


def bodies_of(unit: str, token: str) -> dict[str, bytes]:
    """Return the request bodies with one text."""
    material = fill(unit, most_bytes=MATERIAL_BYTES, most_characters=MATERIAL_BYTES)
    # A query that is only blanks is refused.
    query = "?" + fill(unit, most_bytes=MATERIAL_BYTES, most_characters=QUERY_CHARACTERS - 1)
    common = {"auth_token": token}
    return {
        "material": execute(query="What is it?", material=material, strategy="bounded_context", **common),
        "query": execute(query=query, strategy="chain_of_thought", **common),
    }


async def check_until(is_over: asyncio.Event, client: httpx.AsyncClient) -> list[float]:
    """Return the milliseconds of the health checks of one server, one every 100 ms, until `is_over`."""
    found: list[float] = []
    while not is_over.is_set() or not found:
        begun = time.perf_counter()
        (await client.get("/healthz")).raise_for_status()
        took_s = time.perf_counter() - begun
        found.append(took_s * 1000)
        await asyncio.sleep(max(0.0, EVERY_S - took_s))
    return sorted(found)


async def check_both(addresses: tuple[str, str], told: Connection) -> list[list[float]]:
    """Connect to both servers, say so, and check them until something can be read from `told`."""
    async with (
        httpx.AsyncClient(base_url=addresses[0], timeout=60, trust_env=False) as busy,
        httpx.AsyncClient(base_url=addresses[1], timeout=60, trust_env=False) as idle,
    ):
        for client in (busy, idle):
            await client.get("/healthz")
        is_over = asyncio.Event()
        asyncio.get_running_loop().add_reader(told.fileno(), is_over.set)
        told.send("connected")
        return list(await asyncio.gather(check_until(is_over, busy), check_until(is_over, idle)))


def probe(addresses: tuple[str, str], told: Connection) -> None:
    """Work as the process of the health checks: begin when told, and send what was found when told again."""
    while told.recv():
        told.send(asyncio.run(check_both(addresses, told)))
        told.recv()


def send(address: str, body: bytes) -> str:
    """Send one request; return its outcome."""
    try:
        with httpx.Client(base_url=address, timeout=REQUEST_S, trust_env=False) as client:
            answer = client.post("/api/v1/jsonrpc", content=body, headers={"content-type": "application/json"})
    except httpx.TimeoutException:
        return "left"
    content = answer.json()
    return "result" if "result" in content else str(content["error"]["data"]["reason"])


def measure(address: str, prober: Connection, text: str, sent_as: str, body: bytes | None) -> Measure:
    """Send `body`, or nothing for a while, while `prober` makes health checks."""
    prober.send(True)
    prober.recv()
    begun = time.perf_counter()
    if body is None:
        time.sleep(QUIET_S)
        ended = ""
    else:
        ended = send(address, body)
    seconds = time.perf_counter() - begun
    prober.send(False)
    found, idle = prober.recv()
    return Measure(
        text=text,
        sent_as=sent_as,
        ended=ended,
        seconds=round(seconds, 2),
        checks=len(found),
        median_ms=round(found[len(found) // 2], 1),
        longest_ms=round(found[-1], 1),
        idle_longest_ms=round(idle[-1], 1),
    )


def line_of(one: Measure) -> str:
    """Return a line of the table."""
    return (
        f"{one.text:<26} {one.sent_as:<9} {one.ended:<20} {one.seconds:>7.2f} {one.checks:>6} {one.median_ms:>8.1f} "
        f"{one.longest_ms:>8.1f} {one.idle_longest_ms:>6.1f}  {'met' if one.is_met else 'MISSED'}"
    )


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="run the texts whose name holds this word; writes no results")
    chosen = parser.parse_args()
    print(
        f"{'text':<26} {'as':<9} {'ended':<20} {'s':>7} {'checks':>6} {'p50 ms':>8} {'longest':>8} {'idle':>6}",
        flush=True,
    )
    measures: list[Measure] = []
    load_before = os.getloadavg()[0]
    with server() as (_, addresses), server() as (_, idle):
        address, other = (f"http://{one['http'].removeprefix('http://')}" for one in (addresses, idle))
        prober, told = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=probe, args=((address, other), told))
        process.start()
        told.close()
        try:
            measures.append(measure(address, prober, NONE, "", None))
            print(line_of(measures[-1]), flush=True)
            for text, unit in UNITS.items():
                if chosen.only not in text:
                    continue
                for sent_as, body in bodies_of(unit, addresses["token"]).items():
                    measures.append(measure(address, prober, text, sent_as, body))
                    print(line_of(measures[-1]), flush=True)
            prober.send(False)
        finally:
            prober.close()
            process.join(QUIET_S)
            process.kill()
    missed = [one for one in measures if not one.is_met]
    print(f"{len(missed)} of {len(measures)} missed the bound of {BOUND_MS:g} ms")
    if not chosen.only:
        report = {
            "circumstances": circumstances(PACKAGES),
            "bound_ms": BOUND_MS,
            "load_before": round(load_before, 1),
            "load_after": round(os.getloadavg()[0], 1),
            "measures": [asdict(one) for one in measures],
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
