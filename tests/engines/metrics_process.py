"""A process that counts into a shared folder: `python -m tests.engines.metrics_process CALLS`.

It prints "counted" and ends when its standard input does; on the input "read" it prints the counts of all processes.
"""

from __future__ import annotations

import asyncio
import os
import sys

from reasond_server.telemetry.catalogue import Vocabulary
from reasond_server.telemetry.exposition import FOLDER_VARIABLE, Exposition
from reasond_server.telemetry.meters import Meters
from reasond_server.telemetry.observers import ServerSnapshot


def main() -> None:
    metrics = Meters(vocabulary=Vocabulary(words={}), version="1")

    def sample() -> None:
        metrics.sample(ServerSnapshot(is_ready=True, running=2))

    for _ in range(int(sys.argv[1])):
        metrics.call_ended("grpc", "Reason", "OK", 0.03)
    sample()
    exposition = Exposition(registry=metrics.registry, before=sample, folder=os.environ[FOLDER_VARIABLE])
    say("counted\n")
    for line in sys.stdin:
        if line.strip() == "read":
            scraped = asyncio.run(exposition.scrape([]))
            say(scraped.body.decode() + "# EOF\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
