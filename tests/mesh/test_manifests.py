"""The manifests for Istio and Linkerd, which are not run here: what parsers and Istio's own schemas can say of them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes without types

from reasond_server.config import load
from tests.kubernetes_schemas import ISTIO, find_problems
from tests.mesh.proxies import DEPLOY

MESH = DEPLOY / "mesh"
CHART = DEPLOY / "helm" / "reasond"


def read_all(name: str) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [each for each in yaml.safe_load_all((MESH / name).read_text(encoding="utf-8")) if each]


@pytest.mark.slow
def test_istio_knows_every_field_of_its_manifests() -> None:
    own = [each for each in read_all("istio.yaml") if each["kind"] != "Service"]
    assert len(own) == 5
    assert [problem for each in own for problem in find_problems(each, *ISTIO)] == []


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
