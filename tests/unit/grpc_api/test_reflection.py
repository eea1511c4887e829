from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # shipped without py.typed

from tests.unit.grpc_api.parts import ScriptedReasoning, serving

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = [
    "google.longrunning.Operations",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "reasond.v1.AgentService",
    "reasond.v1.ExecutionService",
    "reasond.v1.ReasoningService",
    "reasond.v1.RepairService",
    "reasond.v1.TurnService",
]
Request = reflection_pb2.ServerReflectionRequest


async def ask(channel: Any, version: str, *requests: Any) -> list[Any]:
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=Request.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return [response async for response in method(iter(requests))]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_both_versions_list_all_services(version: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        answers = await ask(served.channel, version, Request(list_services=""))

    assert [service.name for service in answers[0].list_services_response.service] == NAMES


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@pytest.mark.parametrize("name", [*NAMES, "reasond.v1.ReasoningTask", "grpc.reflection.v1.ServerReflectionRequest"])
async def test_both_versions_know_every_symbol(version: str, name: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        answers = await ask(served.channel, version, Request(file_containing_symbol=name))

    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in answers[0].file_descriptor_response.file_descriptor_proto
    ]
    package, _, short = name.rpartition(".")
    owner = next(file for file in files if file.package == package)
    assert short in {*(each.name for each in owner.service), *(each.name for each in owner.message_type)}
    assert {dependency for file in files for dependency in file.dependency} <= {file.name for file in files}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("reasond.v1.ReasoningService.Reason", "reasond/v1/reasoning_service.proto"),
        ("reasond.v1.ReasonRequest.task", "reasond/v1/reasoning_service.proto"),
        ("reasond.v1.FinishReason.FINISH_REASON_ANSWERED", "reasond/v1/execution.proto"),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc/reflection/v1/reflection.proto"),
    ],
)
async def test_methods_fields_and_values_of_enums_are_symbols_too(name: str, file: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        answers = await ask(served.channel, "v1", Request(file_containing_symbol=name))

    raw = answers[0].file_descriptor_response.file_descriptor_proto[0]
    assert descriptor_pb2.FileDescriptorProto.FromString(raw).name == file


@pytest.mark.parametrize(
    "name", ["reasond.v1.ReasoningService.Guess", "reasond.v1.FinishReason.BORED", "reasond.v1.Nothing", "Reason", ""]
)
async def test_a_symbol_that_does_not_exist_is_not_found(name: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        answers = await ask(served.channel, "v1", Request(file_containing_symbol=name))

    assert answers[0].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_files_are_found_by_name_and_unknown_ones_are_not() -> None:
    async with serving(ScriptedReasoning()) as served:
        answers = await ask(
            served.channel,
            "v1",
            Request(file_by_filename="grpc/reflection/v1/reflection.proto"),
            Request(file_by_filename="reasond/v1/errors.proto"),
            Request(file_by_filename="nothing.proto"),
            Request(file_containing_symbol="no.Thing"),
            Request(all_extension_numbers_of_type="reasond.v1.ReasoningTask"),
        )

    kinds = [answer.WhichOneof("message_response") for answer in answers]
    assert kinds == [
        "file_descriptor_response",
        "file_descriptor_response",
        "error_response",
        "error_response",
        "all_extension_numbers_response",
    ]


async def test_it_can_be_switched_off() -> None:
    async with serving(ScriptedReasoning(), reflection=False) as served:
        for version in ("v1", "v1alpha"):
            # Nothing is sent: the refusal may come before it, and grpc then tells of that instead.
            method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            call: grpc.aio.StreamStreamCall[bytes, bytes] = served.channel.stream_stream(method)()
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_grpcurl_lists_describes_and_calls(required_program: Callable[[str], str]) -> None:
    grpcurl = required_program("grpcurl")
    async with serving(ScriptedReasoning()) as served:
        address = f"127.0.0.1:{served.server.port}"
        listed = await output_of(grpcurl, "-plaintext", address, "list")
        described = await output_of(grpcurl, "-plaintext", address, "describe", NAMES[2])
        operations = await output_of(grpcurl, "-plaintext", address, "describe", NAMES[0])
        answer = await output_of(
            grpcurl,
            *("-plaintext", "-H", "authorization: Bearer good", "-d", '{"task": {"query": "six times seven"}}'),
            *(address, "reasond.v1.ReasoningService/Reason"),
        )

    assert listed.split() == NAMES
    assert "ServerReflectionInfo ( stream .grpc.reflection.v1.ServerReflectionRequest )" in described
    assert "WaitOperation" in operations
    assert json.loads(answer)["reasoning"]["answer"] == "42"


async def test_buf_lists_the_methods() -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert buf, "buf-bin is one of the development tools"
    async with serving(ScriptedReasoning()) as served:
        listed = await output_of(
            buf,
            *("curl", "--protocol", "grpc", "--http2-prior-knowledge", "--list-methods"),
            f"http://127.0.0.1:{served.server.port}",
        )

    assert "reasond.v1.ReasoningService/ReasonIterations" in listed.split()
