"""The manifests for Istio and Linkerd, which are not run here: what parsers and Istio's own schemas can say of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes without types
from jsonschema_rs import Draft202012Validator

from reasond_server.config import load
from tests.mesh.proxies import DEPLOY
from tests.openai_clients.client_environments import leave

if TYPE_CHECKING:
    from pathlib import Path

ISTIO = "istio.io/api@v1.31.4"
MESH = DEPLOY / "mesh"
CHART = DEPLOY / "helm" / "reasond"
LIMIT_S = 300.0


def read_all(name: str) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [each for each in yaml.safe_load_all((MESH / name).read_text(encoding="utf-8")) if each]


def find_definitions(folder: Path) -> list[dict[str, Any]]:
    """Return Istio's resource definitions, from the Go module that holds them."""
    go = shutil.which("go")
    if go is None:
        leave("go is not installed here")
    command = [go, "mod", "download", "-json", ISTIO]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        leave(f"{ISTIO} cannot be fetched here: {done.stdout[-500:]}")
    path = f"{json.loads(done.stdout)['Dir']}/kubernetes/customresourcedefinitions.gen.yaml"
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - one file
        return list(yaml.load_all(file, Loader=yaml.CSafeLoader))


def tighten(schema: Any) -> Any:
    """Return a schema that refuses fields it does not know, which Kubernetes would drop without a word."""
    if isinstance(schema, list):
        return [tighten(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: tighten(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.slow
def test_istio_knows_every_field_of_its_manifests(tmp_path: Path) -> None:
    schemas = {
        (each["spec"]["names"]["kind"], f"{each['spec']['group']}/{version['name']}"): version["schema"]
        for each in find_definitions(tmp_path)
        if each
        for version in each["spec"]["versions"]
    }
    own = [each for each in read_all("istio.yaml") if each["kind"] != "Service"]
    assert len(own) == 5
    problems = []
    for each in own:
        schema = tighten(schemas[each["kind"], each["apiVersion"]]["openAPIV3Schema"]["properties"]["spec"])
        problems += [
            f"{each['kind']}: {error.message}" for error in Draft202012Validator(schema).iter_errors(each["spec"])
        ]
    assert problems == []


@pytest.mark.parametrize("name", ["istio.yaml", "linkerd.yaml"])
def test_names_and_ports_are_those_of_the_chart(name: str) -> None:
    service = next(each for each in read_all(name) if each["kind"] == "Service")
    template = (CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")
    for port in service["spec"]["ports"]:
        assert f"{{name: {port['targetPort']}, containerPort: {port['port']}}}" in template
    labels = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    assert [f"{key}: {value}" in labels for key, value in service["spec"]["selector"].items()] == [True]


@pytest.mark.parametrize("name", ["istio-values.yaml", "linkerd-values.yaml"])
def test_values_are_those_of_the_chart_and_leave_the_time_to_drain(name: str) -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    values = read_all(name)[0]
    assert set(values) <= set(known)
    server = load(None, {}).settings.server
    least_s = server.drain_delay_s + server.drain_grace_s + 6
    assert values["terminationGracePeriodSeconds"] > least_s
    proxy = yaml.safe_load(values["podAnnotations"].get("proxy.istio.io/config", "{}"))
    assert int(proxy.get("terminationDrainDuration", "40s").removesuffix("s")) > least_s
