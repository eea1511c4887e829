"""What Kubernetes knows of its resources, as strict JSON Schemas from the Go modules that hold them."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes without types
from jsonschema_rs import Draft202012Validator

from tests.openai_clients.client_environments import leave

ISTIO = "istio.io/api@v1.31.4", "kubernetes/customresourcedefinitions.gen.yaml"
GRPC_ROUTE = "sigs.k8s.io/gateway-api@v1.4.1", "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"
KUBERNETES = "k8s.io/cli-runtime@v0.34.2", "artifacts/openapi/swagger.json"
_FETCH_LIMIT_S = 300.0
_OPEN = {"format": "int-or-string", "type": "string"}


@cache
def read_file(module: str, path: str) -> str:
    """Return a file of a Go module; leave the test where it cannot be fetched."""
    go = shutil.which("go")
    if go is None:
        leave("go is not installed here")
    command = [go, "mod", "download", "-json", module]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=_FETCH_LIMIT_S)
    if done.returncode:
        leave(f"{module} cannot be fetched here: {done.stdout[-500:]}")
    return (Path(json.loads(done.stdout)["Dir"]) / path).read_text(encoding="utf-8")


def tighten(schema: Any) -> Any:
    """Return a schema that refuses fields it does not know, which Kubernetes would drop without a word."""
    if isinstance(schema, list):
        return [tighten(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if {key: schema.get(key) for key in _OPEN} == _OPEN:
        return {"type": ["integer", "string"]}
    found = {key: tighten(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


@cache
def read_definitions(*file: str) -> dict[tuple[str, str], Any]:
    """Return the schema of each kind and version in a file of resource definitions."""
    documents = yaml.load_all(read_file(*file), Loader=yaml.CSafeLoader)
    return {
        (each["spec"]["names"]["kind"], f"{each['spec']['group']}/{version['name']}"): version["schema"]
        for each in documents
        if each
        for version in each["spec"]["versions"]
    }


@cache
def read_kinds() -> tuple[dict[tuple[str, str], str], Any]:
    """Return the name of the definition of each kind and version of Kubernetes itself, and all definitions."""
    definitions = json.loads(read_file(*KUBERNETES))["definitions"]
    names = {
        (kind["kind"], f"{kind['group']}/{kind['version']}".lstrip("/")): name
        for name, each in definitions.items()
        for kind in each.get("x-kubernetes-group-version-kind", ())
    }
    return names, tighten(definitions)


def find_problems(document: dict[str, Any], *file: str) -> list[str]:
    """Return what Kubernetes would refuse or drop in a resource; of those of a `file` only the spec is looked at."""
    kind = document["kind"], document["apiVersion"]
    if file:
        schema = tighten(read_definitions(*file)[kind]["openAPIV3Schema"]["properties"]["spec"])
        document = document["spec"]
    else:
        names, definitions = read_kinds()
        schema = {"$ref": f"#/definitions/{names[kind]}", "definitions": definitions}
    return [f"{kind[0]}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]
