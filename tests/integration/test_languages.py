"""The protos say where their code belongs, so that code for other languages is generated without a flag."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROTO = Path(__file__).resolve().parents[2] / "proto"
FILES = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))


def generate(protoc: str, language: str, target: Path) -> dict[str, str]:
    """Return the generated files by path, made with no flag but the folder to write to."""
    # The set holds the imported files as well, which not every protoc brings.
    command = (protoc, f"--descriptor_set_in={PROTO / 'reasond.binpb'}", f"--{language}_out={target}", *FILES)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {str(path.relative_to(target)): path.read_text("utf-8") for path in target.rglob("*") if path.is_file()}


@pytest.fixture
def protoc(required_program: Callable[[str], str]) -> str:
    return required_program("protoc")


def test_go_code_is_one_package_below_the_path_of_the_module(
    protoc: str, required_program: Callable[[str], str], tmp_path: Path
) -> None:
    required_program("protoc-gen-go")
    files = generate(protoc, "go", tmp_path)
    assert set(files) == {f"reasond/clients/go/{Path(name).stem}.pb.go" for name in FILES}
    assert all("\npackage reasondv1\n" in text for text in files.values())


def test_java_code_has_a_file_for_each_message_in_our_package(protoc: str, tmp_path: Path) -> None:
    files = generate(protoc, "java", tmp_path)
    assert all(name.startswith("reasond/v1/") for name in files)
    assert {"reasond/v1/ReasoningTask.java", "reasond/v1/TurnStart.java", "reasond/v1/RepairTask.java"} <= set(files)
    assert all("\npackage reasond.v1;\n" in text for text in files.values())


def test_csharp_code_is_in_our_namespace(protoc: str, tmp_path: Path) -> None:
    files = generate(protoc, "csharp", tmp_path)
    assert len(files) == len(FILES)
    assert all("\nnamespace Reasond.V1 {\n" in text for text in files.values())
