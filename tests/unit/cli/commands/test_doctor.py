from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands.doctor import Diagnosis, examine, examine_port, format_diagnosis
from tests.sandboxing import LEVELS, require_level
from tests.unit.base.test_plugins import install

if TYPE_CHECKING:
    from reasond_server.types.repairs import SandboxLevel

NO_FILE = Path("/dev/null")
FREE = {"REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "[::1]:0"}


def findings(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = examine(NO_FILE, environ=environ)
    return code, capsys.readouterr().out.splitlines()


def test_a_working_environment_has_no_failure_and_one_line_per_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = findings(FREE, capsys)
    assert (code, [line for line in lines if line.startswith("fail")]) == (0, [])
    assert {line[:4] for line in lines} <= {"ok  ", "warn"}
    subjects = {line[6:18].strip() for line in lines}
    assert subjects >= {"python", "package", "stubs", "sqlite", "strategy", "extra", "config", "model", "serve", "port"}
    assert any("bounded_context" in line for line in lines)
    assert any(line.startswith("warn  model") and "[llm]" in line for line in lines)
    assert any(
        line.startswith("warn  serve         `reasond serve` would refuse to start. auth.keys") for line in lines
    )


def test_a_wrong_configuration_is_a_failure_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = findings({**FREE, "REASOND__SERVER__NOPE": "1"}, capsys)
    assert code == 1
    assert lines[-1].startswith("fail  config")
    assert "server.nope" in lines[-1]


def test_a_configuration_that_no_mode_serves_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = findings({**FREE, "REASOND__LLM__PROVIDER": "openai"}, capsys)
    assert code == 1
    assert any(line.startswith("fail  serve") and "llm.model" in line for line in lines)
    assert any(line.startswith("ok    model         openai") for line in lines)


def test_a_configuration_with_a_key_serves_in_both_modes(capsys: pytest.CaptureFixture[str]) -> None:
    key = {"K": "kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU", "REASOND__AUTH__KEYS": '[{ id = "one", secret_env = "K" }]'}
    code, lines = findings({**FREE, **key}, capsys)
    assert (code, [line for line in lines if line.startswith("fail")]) == (0, [])
    assert any(line.startswith("ok    serve") for line in lines)


def test_an_address_that_is_taken_is_a_warning_that_names_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finding = examine_port("grpc_address", address)
        assert finding.level == "warn"
        assert address in finding.text
        assert "server.grpc_address" in finding.remedy
    assert examine_port("grpc_address", address).level == "ok"


def test_a_name_that_cannot_be_resolved_is_a_warning() -> None:
    assert examine_port("http_address", "no-such-host.invalid:1").level == "warn"


def test_a_line_holds_level_subject_text_and_remedy() -> None:
    finding = Diagnosis(level="fail", subject="x", text="is\nmissing\x1b", remedy="Mend it.")
    assert format_diagnosis(finding) == "fail  x             is missing\N{REPLACEMENT CHARACTER}. Mend it."


def test_tools_are_listed_and_a_server_that_does_not_answer_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    server = {"REASOND__TOOLS__MCP__FILES__COMMAND": "/no/such/program"}
    code, lines = findings({**FREE, **server}, capsys)
    assert (code, [line for line in lines if line.startswith("fail")]) == (0, [])
    assert "ok    tools         calculator, current_time" in lines
    (line,) = (line for line in lines if line[6:18].strip() == "mcp")
    assert line.startswith("warn  mcp           files at '/no/such/program' does not answer. Start it, or correct")


def test_a_tool_that_is_not_installed_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = findings({**FREE, "REASOND__TOOLS__ENABLED": '["nothing"]'}, capsys)
    assert code == 1
    assert any(line.startswith("fail  tools") and "'nothing'" in line for line in lines)


def test_a_strategy_that_two_packages_offer_is_a_failure_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "other", "react = other:Strategy", group="reasond.strategies")
    monkeypatch.syspath_prepend(tmp_path)
    code, lines = findings(FREE, capsys)
    (line,) = [line for line in lines if line.startswith("fail  strategy")]
    assert code == 1
    assert all(words in line for words in ("'react'", "other 1 (other:Strategy)", "reasond-server "))


def test_the_sandbox_is_not_tried_where_repairs_are_off(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = findings(FREE, capsys)
    assert (
        "ok    sandbox       not needed, because [repair] enabled is false and [reasoning] program_environment is empty"
        in lines
    )


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
def test_the_level_of_the_sandbox_is_proved_and_environments_are_tried(
    capsys: pytest.CaptureFixture[str], level: SandboxLevel
) -> None:
    require_level(level)
    environ = {
        **FREE,
        "REASOND__REPAIR__ENABLED": "true",
        "REASOND__REPAIR__SANDBOX__LEVEL": level.value,
        "REASOND__REPAIR__ENVIRONMENTS__SYSTEM__PRESET": "plain",
        "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
        "REASOND__REPAIR__ENVIRONMENTS__PYTHON__ROOT": "/usr",
    }
    code, lines = findings(environ, capsys)
    assert (code, [line for line in lines if line.startswith("fail")]) == (0, [])
    assert f"ok    sandbox       {level.value}, whose self-test passed" in lines
    assert [line for line in lines if line[6:18].strip() == "environment"] == [
        "ok    environment   python at /usr",
        "ok    environment   system at /usr",
    ]


def test_a_sandbox_that_does_not_work_is_a_warning_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {
        **FREE,
        "REASOND__REPAIR__ENABLED": "true",
        "REASOND__REPAIR__SANDBOX__LEVEL": "bwrap",
        "REASOND__REPAIR__SANDBOX__BWRAP": "/no/such/program",
    }
    code, lines = findings(environ, capsys)
    (line,) = (line for line in lines if line[6:18].strip() == "sandbox")
    assert code == 0
    assert line.startswith("warn  sandbox       off: bwrap: there is no program /no/such/program; install the package")
