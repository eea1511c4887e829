"""Write the Go stubs and the service config of the Go client from what `scripts.generate` wrote.

The plugins of Go's own generators get the committed descriptor set as their request, so no protoc is needed.
`--check` writes nothing and fails if the committed files differ. Without Go nothing is written or compared, and that is
a failure only where CI=true.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from scripts.pages import ROOT, write_or_check
from scripts.programs import BIN, install, name_of
from scripts.stages import PROTOC_GEN_GO, PROTOC_GEN_GO_GRPC

CLIENT = Path("clients") / "go"
MODULE = "reasond/clients/go"
DESCRIPTORS = ROOT / "proto" / "reasond.binpb"
SERVICE_CONFIG = ROOT / "proto" / "reasond.service_config.json"
OWN_PROTOS = "reasond/"
PLUGINS = (PROTOC_GEN_GO, PROTOC_GEN_GO_GRPC)


def build_request(descriptors: bytes) -> CodeGeneratorRequest:
    """Return the request for a plugin: our files are generated, imported ones are only known."""
    files = FileDescriptorSet.FromString(descriptors).file
    return CodeGeneratorRequest(
        file_to_generate=[file.name for file in files if file.name.startswith(OWN_PROTOS)],
        parameter=f"module={MODULE}",
        proto_file=files,
    )


def run_plugin(program: Path, request: CodeGeneratorRequest) -> dict[Path, str]:
    """Return the files that a plugin writes, by their path in the repository.

    Raises:
      RuntimeError: the plugin refuses the request.
    """
    done = subprocess.run([program], input=request.SerializeToString(), capture_output=True, check=True)
    response = CodeGeneratorResponse.FromString(done.stdout)
    if response.error:
        message = f"{program.name}: {response.error}"
        raise RuntimeError(message)
    return {CLIENT / file.name: file.content for file in response.file}


def generate() -> dict[Path, str]:
    """Return the generated files by path; the plugins must be installed."""
    request = build_request(DESCRIPTORS.read_bytes())
    files = {CLIENT / "reasond" / "service_config.json": SERVICE_CONFIG.read_text("utf-8")}
    for plugin in PLUGINS:
        files |= run_plugin(BIN / name_of(plugin), request)
    return files


def list_committed() -> list[Path]:
    """Return the generated files that the repository contains."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / CLIENT).glob("*.pb.go"))


def main() -> int:
    """Write the files, or with --check compare them."""
    BIN.mkdir(parents=True, exist_ok=True)
    notes = [install(plugin) for plugin in PLUGINS]
    missing = [note for note in notes if note.startswith("note:")]
    if missing:
        print("\n".join((*missing, "the Go client was not generated or compared")))
        return 1 if os.environ.get("CI", "").lower() in {"1", "true"} else 0
    return write_or_check(generate(), description=__doc__ or "", command="make generate", known=list_committed())


if __name__ == "__main__":
    sys.exit(main())
