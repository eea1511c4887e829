"""The Helm chart, rendered by helm and held against the schemas of Kubernetes; nothing of it is installed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes without types

from reasond_server.telemetry.catalogue import CATALOGUE
from reasond_server.testing import running_server_in_thread
from tests.kubernetes_schemas import GRPC_ROUTE, find_problems
from tests.openai_clients.client_environments import leave
from tests.packaging.environments import ROOT

HELM = ROOT / ".cache" / "bin" / "helm"
CHART = ROOT / "deploy" / "helm" / "reasond"
KIND = ROOT / "deploy" / "kind" / "rolling-update.yaml"
ALWAYS = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}
EVERYTHING: dict[str, Any] = {
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "envFrom": [{"configMapRef": {"name": "more"}}],
    "volumes": [{"name": "roots", "secret": {"secretName": "roots"}}],
    "volumeMounts": [{"name": "roots", "mountPath": "/roots", "readOnly": True}],
    "podAnnotations": {"example.com/a": "b"},
    "nodeSelector": {"example.com/a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "podDisruptionBudget": {"maxUnavailable": None, "minAvailable": "50%"},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "httpHost": "reason.example.com",
        "grpcHost": "grpc.example.com",
        "tlsSecretName": "certificate",
        "annotations": {"example.com/for": "both"},
    },
    "grpcRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["grpc.example.com"]},
    "autoscaling": {"enabled": True},
    "networkPolicy": {"enabled": True},
}


def run_helm(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    if not HELM.exists():
        leave("helm is not installed here")
    command = [str(HELM), "template", "release", str(CHART), "--values", "-"]
    return subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)


def render(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the resources by kind, and a second one of a kind by its name."""
    done = run_helm(values)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = {}
    for each in yaml.safe_load_all(done.stdout):
        if each:
            found[each["kind"] if each["kind"] not in found else each["metadata"]["name"]] = each
    return found


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it is", "everything"])
def test_kubernetes_knows_every_field_of_the_chart(values: dict[str, Any]) -> None:
    resources = render(values)
    route = resources.pop("GRPCRoute", None)

    assert [problem for each in resources.values() for problem in find_problems(each)] == []
    assert (route is not None) == bool(values)
    assert route is None or find_problems(route, *GRPC_ROUTE) == []


def test_the_schemas_find_a_field_that_does_not_exist() -> None:
    deployment = render({})["Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []

    assert len(find_problems(deployment)) == 1


def test_nothing_is_added_that_was_not_asked_for() -> None:
    assert set(render({})) == ALWAYS
    assert set(render(EVERYTHING)) == {
        *ALWAYS,
        *("GRPCRoute", "HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "release-grpc"),
    }


def test_what_pods_get_besides_reaches_all_containers() -> None:
    deployment = render(EVERYTHING)["Deployment"]["spec"]
    pod = deployment["template"]["spec"]

    assert "replicas" not in deployment
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["env"] == EVERYTHING["env"]
        assert container["envFrom"] == [{"secretRef": {"name": "reasond"}}, *EVERYTHING["envFrom"]]
        assert [each["name"] for each in container["volumeMounts"]] == ["config", "tmp", "roots"]
    assert [each["name"] for each in pod["volumes"]] == ["config", "tmp", "roots"]
    labels = deployment["selector"]["matchLabels"]
    assert [each["labelSelector"]["matchLabels"] for each in pod["topologySpreadConstraints"]] == [labels, labels]


def test_routes_lead_to_the_ports_of_the_service() -> None:
    resources = render(EVERYTHING)
    ports = {each["name"]: each["port"] for each in resources["Service"]["spec"]["ports"]}
    container = resources["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    http, grpc = resources["Ingress"], resources["release-grpc"]

    assert ports == {each["name"]: each["containerPort"] for each in container["ports"]}
    backends = [each["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"] for each in (http, grpc)]
    assert backends == [{"name": "release", "port": {"name": name}} for name in ("http", "grpc")]
    assert "nginx.ingress.kubernetes.io/backend-protocol" not in http["metadata"]["annotations"]
    assert grpc["metadata"]["annotations"].items() > http["metadata"]["annotations"].items()
    backend = resources["GRPCRoute"]["spec"]["rules"][0]["backendRefs"][0]
    assert backend == {"name": "release", "port": ports["grpc"]}
    callers, readers = resources["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for rule in (callers, readers) for each in rule["ports"]] == ["grpc", "http", "metrics"]


def test_the_chart_scales_by_a_metric_that_the_adapter_makes_of_ours() -> None:
    (metric,) = render(EVERYTHING)["HorizontalPodAutoscaler"]["spec"]["metrics"]
    adapter = yaml.safe_load((CHART.parent / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]

    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    used = set(re.findall(r"reasond_\w+", f"{rule['seriesQuery']} {rule['metricsQuery']}"))
    assert used == {f"reasond_execution{each}" for each in ("_places", "s_running", "s_queued")}
    assert used <= set(CATALOGUE)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"ingress": {"host": "a"}}, "host"),
        ({"grpcRoute": {"enabled": True}}, "parentRefs"),
        ({"podDisruptionBudget": {"minAvailable": 1}}, "podDisruptionBudget"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], told: str) -> None:
    done = run_helm(values)

    assert done.returncode != 0
    assert told in done.stderr


def test_kubernetes_knows_every_field_of_the_rolling_update() -> None:
    documents = list(yaml.safe_load_all(KIND.read_text(encoding="utf-8")))

    assert [each["kind"] for each in documents] == ["Secret", "Deployment", "Service", "Job"]
    assert [problem for each in documents for problem in find_problems(each)] == []
    secret = documents[0]
    assert secret["metadata"]["name"] == yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["secretName"]


def test_the_callers_of_the_rolling_update_call_and_fail_if_a_call_fails() -> None:
    job = list(yaml.safe_load_all(KIND.read_text(encoding="utf-8")))[-1]["spec"]["template"]["spec"]["containers"][0]
    (program,) = (each["value"] for each in job["env"] if each["name"] == "CALLERS")
    with running_server_in_thread() as server:
        environ = {**os.environ, "REASOND_TARGET": server.grpc, "SECONDS_OF_CALLS": "0.5"}
        command = [sys.executable, "-c", program]
        ends = [
            subprocess.run(
                command, env={**environ, "REASOND_TOKEN": token}, capture_output=True, text=True, check=False
            )
            for token in (server.token, "of another server")
        ]

    assert re.fullmatch(r"[1-9]\d* calls, none failed\n", ends[0].stdout), ends[0].stderr
    assert (ends[0].returncode, ends[1].returncode) == (0, 1)
