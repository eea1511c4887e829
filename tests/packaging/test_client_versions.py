"""The client's wheel contains only the client, and works with the lowest and the newest versions that it declares."""

from __future__ import annotations

import re
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.packaging.environments import CLIENT, new_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM = """
import asyncio, importlib, pkgutil
from concurrent.futures import ThreadPoolExecutor

import grpc
import reasond
import reasond.v1
from google.rpc import error_details_pb2, status_pb2
from reasond.v1 import reasoning_service_pb2 as pb
from reasond.v1.execution_pb2 import ExecutionStarted, Reasoning
from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceServicer, add_ReasoningServiceServicer_to_server

modules = [importlib.import_module("reasond.v1." + found.name) for found in pkgutil.iter_modules(reasond.v1.__path__)]
assert len(modules) >= 8, modules


class Servicer(ReasoningServiceServicer):
    def Reason(self, request, context):
        if request.task.query == "refuse":
            status = status_pb2.Status(code=3, message="refused")
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="INVALID_CONFIG", domain="reasond"))
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
        assert request.task.bounded_context.chunk_size == 2048
        return pb.ReasonResponse(reasoning=Reasoning(answer=request.task.query.upper()))

    def ReasonIterations(self, request, context):
        yield pb.ReasonIterationsResponse(execution_id="e1", sequence=1, started=ExecutionStarted(strategy="x"))
        yield pb.ReasonIterationsResponse(execution_id="e1", sequence=2, completed=Reasoning(answer="done"))


def blocking(target):
    with reasond.Client(target, token="t") as client:
        assert client.reason("why", strategy="bounded_context", config={"chunk_size": 2048}).answer == "WHY"
        stream = client.reason_iterations("why", strategy="debate", config={"rounds": 3})
        assert [event.sequence for event in stream] == [1, 2]
        assert stream.result.answer == "done"
        try:
            client.reason("refuse")
        except reasond.InvalidRequestError as error:
            assert error.reason == "INVALID_CONFIG", error
        else:
            raise AssertionError("not refused")


async def asynchronous(target):
    async with reasond.AsyncClient(target, token="t") as client:
        config = reasond.BoundedContextConfig(chunk_size=2048)
        assert (await client.reason("why", config=config)).answer == "WHY"
        async with client.reason_iterations("why") as stream:
            assert [event.sequence async for event in stream] == [1, 2]
        assert stream.result.answer == "done"


server = grpc.server(ThreadPoolExecutor(2))
add_ReasoningServiceServicer_to_server(Servicer(), server)
target = "127.0.0.1:%d" % server.add_insecure_port("127.0.0.1:0")
server.start()
blocking(target)
asyncio.run(asynchronous(target))
server.stop(0).wait()
print("worked")
"""


def lowest() -> list[str]:
    """Return the lowest version of each dependency that the client declares, as pip requirements."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    return [re.sub(r"^([\w.-]+)>=([\w.]+).*$", r"\1==\2", requirement) for requirement in project["dependencies"]]


def test_the_wheel_holds_the_client_and_nothing_else(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["reasond"]).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"reasond"}
    assert {"reasond/py.typed", "reasond/client.py", "reasond/v1/reasoning_service_pb2.pyi"} <= set(names)
    assert not [name for name in names if "test" in name or "__pycache__" in name]


@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_the_client_works_with_warnings_as_errors(wheels: dict[str, Path], tmp_path: Path, versions: str) -> None:
    environment = new_environment(tmp_path / "venv")
    pins = lowest() if versions == "lowest" else []
    assert not any(">" in pin for pin in pins)
    environment.install(wheels["reasond"], *pins)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    assert environment.run("python", "-I", "-W", "error", program) == "worked\n"
    installed = environment.distributions()
    # newer versions of grpcio depend on typing_extensions
    assert set(installed) - {"typing_extensions"} == {"reasond", "grpcio", "protobuf", "googleapis-common-protos"}
    assert set(pins) <= {f"{name}=={version}" for name, version in installed.items()}
