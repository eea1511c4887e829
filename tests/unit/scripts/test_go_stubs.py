from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from google.protobuf.compiler.plugin_pb2 import CodeGeneratorResponse

from scripts import go_stubs
from scripts.go_stubs import (
    CLIENT,
    DESCRIPTORS,
    PLUGINS,
    SERVICE_CONFIG,
    build_request,
    list_committed,
    run_plugin,
)
from scripts.pages import ROOT
from scripts.programs import name_of

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED = list_committed()


def write_plugin(folder: Path, response: CodeGeneratorResponse) -> Path:
    """Return a program that reads a request and answers with `response`."""
    (folder / "response").write_bytes(response.SerializeToString())
    program = folder / "plugin"
    program.write_text(f"#!/bin/sh\ncat > {folder / 'request'}\ncat {folder / 'response'}\n", "utf-8")
    program.chmod(0o755)
    return program


def test_only_our_own_protos_are_generated_and_imported_ones_are_known() -> None:
    request = build_request(DESCRIPTORS.read_bytes())
    assert "reasond/v1/turns.proto" in request.file_to_generate
    assert not [name for name in request.file_to_generate if name.startswith("google/")]
    assert "google/protobuf/timestamp.proto" in {file.name for file in request.proto_file}
    assert request.parameter == "module=reasond/clients/go"


def test_a_plugin_gets_the_request_and_its_files_are_placed_in_the_client(tmp_path: Path) -> None:
    file = CodeGeneratorResponse.File(name="turns.pb.go", content="package reasondv1")
    request = build_request(DESCRIPTORS.read_bytes())
    found = run_plugin(write_plugin(tmp_path, CodeGeneratorResponse(file=[file])), request)
    assert found == {CLIENT / "turns.pb.go": "package reasondv1"}
    assert (tmp_path / "request").read_bytes() == request.SerializeToString()


def test_a_plugin_that_refuses_is_quoted(tmp_path: Path) -> None:
    program = write_plugin(tmp_path, CodeGeneratorResponse(error="no such parameter"))
    with pytest.raises(RuntimeError, match="plugin: no such parameter"):
        run_plugin(program, build_request(DESCRIPTORS.read_bytes()))


def test_the_committed_stubs_are_those_of_the_pinned_plugins() -> None:
    versions = {name_of(each): each.partition("@v")[2] for each in PLUGINS}
    for path in COMMITTED:
        plugin = "protoc-gen-go-grpc" if path.name.endswith("_grpc.pb.go") else "protoc-gen-go"
        head = (ROOT / path).read_text("utf-8")[:2000]
        assert f"{plugin} v{versions[plugin]}\n" in head


def test_the_client_carries_the_published_service_config() -> None:
    carried = (ROOT / CLIENT / "reasond" / "service_config.json").read_text("utf-8")
    assert json.loads(carried) == json.loads(SERVICE_CONFIG.read_text("utf-8"))


def test_the_module_needs_no_newer_go_than_its_page_says() -> None:
    lines = (ROOT / CLIENT / "go.mod").read_text("utf-8").splitlines()
    assert "go 1.23.0" in lines
    assert not [line for line in lines if line.startswith("toolchain")]
    assert "Go 1.23 or newer" in (ROOT / CLIENT / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_without_go_it_is_a_note_and_in_ci_a_failure(
    ci: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_nothing(module: str) -> str:
        return f"note: {name_of(module)} was not installed, because there is no go"

    monkeypatch.setattr(go_stubs, "install", find_nothing)
    monkeypatch.setattr(go_stubs, "BIN", tmp_path)
    monkeypatch.setenv("CI", ci)
    assert go_stubs.main() == code
    told = capsys.readouterr().out.splitlines()
    assert "the Go client was not generated or compared" in told
