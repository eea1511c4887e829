"""A client that is generated from openapi.json, in a language that has none of ours, calls RPCs of every service."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from reasond_server.testing import running_server_in_thread
from scripts.openapi import PATH
from tests.clients.building import STAMPS, run_commands, run_if_changed
from tests.clients.conftest import IN_CI
from tests.clients.drivers import ROOT, DriverProgram

pytestmark = pytest.mark.slow

VERSION = "7.25.0"
FOLDER = STAMPS / "described"
JAR = FOLDER / f"openapi-generator-cli-{VERSION}.jar"
FETCH = (
    *("mvn", "-B", "-q", "dependency:copy", f"-DoutputDirectory={FOLDER}"),
    f"-Dartifact=org.openapitools:openapi-generator-cli:{VERSION}",
)
CLIENT = DriverProgram(
    language="ruby",
    build=(
        (
            *("java", "-XX:TieredStopAtLevel=1", "-jar", str(JAR), "generate", "-g", "ruby", "-i", str(ROOT / PATH)),
            *("-o", str(FOLDER / "ruby"), "--additional-properties=gemName=reasond_rest,moduleName=ReasondRest"),
            "--global-property=apiTests=false,modelTests=false,apiDocs=false,modelDocs=false",
        ),
    ),
    run=("ruby", "-W0", "-I", str(FOLDER / "ruby" / "lib"), "tests/clients/described_client.rb"),
    sources=(str(PATH), "tests/clients/test_described_client.py"),
    products=(FOLDER / "ruby" / "lib" / "reasond_rest.rb",),
    needs=("ruby", "java", "mvn"),
)


def find_obstacle() -> str:
    """Return why the client cannot be generated or run here; empty if it can."""
    if missing := [name for name in CLIENT.needs if shutil.which(name) is None]:
        return f"a client in Ruby needs {', '.join(missing)}, which are not installed here"
    if subprocess.run(["ruby", "-rtyphoeus", "-e", ""], check=False, capture_output=True).returncode:
        return "a client in Ruby needs typhoeus (Debian's ruby-typhoeus), which is not installed here"
    if not JAR.exists() and subprocess.run(FETCH, check=False, capture_output=True).returncode:
        return "Maven cannot fetch openapi-generator-cli here"
    return ""


def test_a_client_in_ruby_that_is_generated_from_the_description_calls_every_service() -> None:
    if obstacle := find_obstacle():
        pytest.fail(obstacle) if IN_CI else pytest.skip(obstacle)
    run_if_changed(CLIENT, CLIENT.build)
    with running_server_in_thread(environ={"REASOND__REPAIR__ENABLED": "true"}) as server:
        written = run_commands(CLIENT, [(*CLIENT.run, server.http)], REASOND_TOKEN=server.token)
    read = json.loads(written)
    assert read == {
        "answer": "408",
        "steps": 1,
        "tokens": read["tokens"],
        "asked": "What is 17 * 24?",
        "began": read["began"],
        "listed": True,
        "events": ["2", "3"],
        "refused": [5, "EXECUTION_NOT_FOUND"],
        "turn": ["TURN_STATE_SUCCEEDED", "ruby/1", 1],
        "repair": "FINISH_REASON_MAX_ITERATIONS",
        "agent": ["ruby"],
    }
    assert read["tokens"] > 0
    assert read["began"] >= 2026
