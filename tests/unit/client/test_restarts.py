"""A server process that dies in the first moments of a call and is back three seconds later."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import reasond

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc
from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc

class Service(reasoning_service_pb2_grpc.ReasoningServiceServicer):
    def ListStrategies(self, request, context):
        print("called", flush=True)
        time.sleep(float(sys.argv[2]))
        return reasoning_service_pb2.ListStrategiesResponse()

server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
reasoning_service_pb2_grpc.add_ReasoningServiceServicer_to_server(Service(), server)
assert server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
print("up", flush=True)
server.wait_for_termination()
"""
BACK_AFTER_S = 3.0


class Restarted:
    """A process that dies once it is called, and its successor on the same port."""

    def __init__(self) -> None:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.processes = [self.start(answers_after_s=60)]
        assert self.read() == "up"

    def start(self, *, answers_after_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SERVER, str(self.port), str(answers_after_s)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def read(self) -> str:
        output = self.processes[-1].stdout
        assert output is not None
        return output.readline().strip()

    def die_when_called(self) -> None:
        assert self.read() == "called"
        self.processes[0].kill()
        timer = threading.Timer(BACK_AFTER_S, lambda: self.processes.append(self.start(answers_after_s=0)))
        timer.start()
        timer.join()


@pytest.fixture
def server() -> Iterator[Restarted]:
    restarted = Restarted()
    yield restarted
    for process in restarted.processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
async def test_a_call_whose_server_died_at_its_beginning_is_answered_by_the_next_one(server: Restarted) -> None:
    async with reasond.AsyncClient(f"127.0.0.1:{server.port}", timeout_s=60) as client:
        death = asyncio.create_task(asyncio.to_thread(server.die_when_called))
        assert list((await client.list_strategies()).strategies) == []
        await death


async def test_an_address_that_takes_connections_and_says_nothing_is_given_up_before_the_deadline() -> None:
    """gRPC would wait 20 s for the first word of each connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        async with reasond.AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=19) as client:
            with pytest.raises(reasond.UnavailableError):
                await client.list_strategies()
