"""The command as users run it: real processes, a real server, real signals."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.examples import Endpoints, list_calls
from reasond_server.cli.outcome import ExitCode
from reasond_server.config import ReasoningSettings
from reasond_server.errors.model import ModelFailedError
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import Reply, ScriptedModel, running_server_in_thread
from tests.forking import ForkedProcess, run_forked
from tests.screens import open_terminal
from tests.unit.documents.document_samples import build_docx, build_pdf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


COMMAND = [str(Path(sys.executable).with_name("reasond"))]
LIMIT_S = 180.0
KEY = {"SIGNING": "kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU", "REASOND__AUTH__KEYS": '[{ id = "one", secret_env = "SIGNING" }]'}
FREE_PORTS = {"REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}


def run(
    *arguments: str, environ: Mapping[str, str] | None = None, stdin: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a forked process; its output must never contain a traceback."""
    done = run_forked(*arguments, environ={**os.environ, **(environ or {})}, folder=folder or Path(os.sep), stdin=stdin)
    assert "Traceback" not in done.stderr + done.stdout
    return done


def run_program(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program `reasond` to its end, its output into pipes, as a shell would."""
    command, environment, nothing = [*COMMAND, *arguments], {**os.environ, **(environ or {})}, subprocess.DEVNULL
    return subprocess.run(
        command, env=environment, stdin=nothing, capture_output=True, encoding="utf-8", timeout=LIMIT_S, check=False
    )


def caller(server: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a caller of `server`."""
    return {"REASOND_TARGET": server["grpc"], "REASOND_TOKEN": server["token"]}


@contextmanager
def serving(folder: Path, *options: str, environ: Mapping[str, str]) -> Iterator[ForkedProcess]:
    """Fork `reasond serve` with its ready file and its output, `out` and `err`, in `folder`; wait until it is ready.

    `dev_server` is the installed program, and is ended by SIGTERM, too.
    """
    process = ForkedProcess(
        *("serve", "--ready-file", str(folder / "ready.json"), *options),
        environ={**os.environ, **FREE_PORTS, **environ},
        folder=folder,
        stdout=folder / "out",
        stderr=folder / "err",
        ends_interpreter=True,
    )
    try:
        limit = time.monotonic() + LIMIT_S
        while not (folder / "ready.json").exists():
            assert time.monotonic() < limit
            assert not ended_within(process, 0.05), (folder / "err").read_text("utf-8")
        yield process
    finally:
        process.kill()
        process.wait()


def ended_within(process: ForkedProcess, seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def address_of(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "ready.json").read_text("utf-8"))
    return found


def readiness(address: str) -> int:
    """Return the status of /readyz."""
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_help_and_version_answer_and_unknown_commands_are_usage_errors() -> None:
    shown = run_program("--help")
    assert shown.returncode == 0
    assert "Exit codes" in shown.stdout
    for command in ("serve", "demo", "ask", "strategies", "repair", "token", "config", "doctor"):
        assert command in shown.stdout
    assert run_program("--version").stdout.startswith("reasond 0.")
    assert run("nonsense").returncode == 2
    assert run("ask", "x", "--timeout", "soon").returncode == 2


def test_help_imports_nothing_that_a_command_needs_and_collects_no_garbage() -> None:
    code = (
        "import gc, sys; collections = []; gc.collect(); gc.callbacks.append(lambda *_: collections.append(1))\n"
        "from reasond_server.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(len(collections))\n"
        "print(sorted({'grpc', 'pydantic', 'rich', 'google', 'uvicorn', 'jwt', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["0", "[]"]


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reasond_server", "--version"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.startswith("reasond 0.")


def test_a_piped_answer_is_alone_on_stdout_and_the_steps_are_on_stderr(dev_server: Mapping[str, str]) -> None:
    done = run_program("ask", "What is 7 times 6?", environ=caller(dev_server))
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert "step 1/1" in done.stderr
    assert "answered" in done.stderr


def test_json_is_one_event_per_line_and_nothing_else(dev_server: Mapping[str, str]) -> None:
    done = run("ask", "What is 7 times 6?", "--json", environ=caller(dev_server))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [int(event["sequence"]) for event in events] == [1, 2, 3]
    assert events[-1]["completed"]["answer"] == "42"
    assert done.stderr == ""
    step = events[1]["iteration"]
    assert (step["index"], step["usage"]["cached_input_tokens"]) == (0, "0"), "0 is a value, too"


def test_a_run_that_failed_before_its_first_call_is_not_offered_to_be_read(tmp_path: Path) -> None:
    nobody = {"PROVIDER": "openai", "MODEL": "m", "BASE_URL": "http://127.0.0.1:9/v1", "MAX_ATTEMPTS": "1"}
    environ = {f"REASOND__LLM__{name}": value for name, value in nobody.items()}
    with serving(tmp_path, "--dev", environ=environ):
        told = json.loads((tmp_path / "ready.json").read_text("utf-8"))
        done = run("ask", "What is 7 times 6?", environ=caller(told))
    assert done.returncode == ExitCode.MODEL
    assert "0 model calls" in done.stderr
    assert "is kept" not in done.stderr


def test_material_comes_from_a_file_or_stdin_and_settings_reach_the_strategy(
    dev_server: Mapping[str, str], tmp_path: Path
) -> None:
    text = "Rain fell. The library opens at nine on Mondays. Snow fell."
    file = tmp_path / "text.txt"
    file.write_text(text, "utf-8")
    options = ("--strategy", "bounded_context", "--set", "chunk_size=1024", "--set", "carryover_size=512", "--json")
    for source, stdin in ((str(file), ""), ("-", text)):
        question = "When does the library open on Mondays?"
        done = run("ask", question, "--material", source, *options, environ=caller(dev_server), stdin=stdin)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert json.loads(events[0]["started"]["config_json"])["chunk_size"] == 1024
        assert events[-1]["completed"]["answer"] == "The library opens at nine on Mondays."


def test_settings_without_a_strategy_are_those_of_the_servers_default(dev_server: Mapping[str, str]) -> None:
    done = run("ask", "What is 7 times 6?", "--set", "max_tokens=200", "--json", environ=caller(dev_server))
    started = json.loads(done.stdout.splitlines()[0])["started"]
    assert (started["strategy"], json.loads(started["config_json"])["max_tokens"]) == ("chain_of_thought", 200)


def test_a_conversation_stop_strings_and_a_bound_of_tokens_reach_the_server(
    dev_server: Mapping[str, str], tmp_path: Path
) -> None:
    said = [{"role": "user", "text": "I have Rex and Ben."}, {"role": "assistant", "text": "Good dogs."}]
    forms = {"list.json": json.dumps(said, indent=1), "lines.jsonl": "\n".join(map(json.dumps, said)) + "\n\n"}
    options = ("--stop", "4", "--stop", "END", "--max-output-tokens", "500", "--json")
    for name, text in forms.items():
        (tmp_path / name).write_text(text, "utf-8")
        asked = ("ask", "What is 7 times 6?", "--history", str(tmp_path / name), *options)
        done = run_forked(*asked, environ={**os.environ, **caller(dev_server)}, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        execution = json.loads(done.stdout.splitlines()[0])["execution_id"]
        shown = ("executions", "show", execution, "--json")
        found = run_forked(*shown, environ={**os.environ, **caller(dev_server)}, folder=tmp_path)
        task = json.loads(found.stdout)["task"]
        assert [(entry["role"], entry["text"]) for entry in task["history"]] == [
            ("SPEAKER_USER", "I have Rex and Ben."),
            ("SPEAKER_ASSISTANT", "Good dogs."),
        ]
        assert task["stop"] == ["4", "END"]
        assert task["budget"]["max_output_tokens"] == "500"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ask", "x", "--strategy", "nope"], 4, "bounded_context"),
        (["ask", "x", "--strategy", "bounded_context", "--set", "chunk_siz=1"], 2, "did you mean 'chunk_size'"),
        (["ask", "x", "--strategy", "bounded_context", "--set", "chunk_size=1"], 2, "at least 1024"),
        (["ask", "x", "--set", "chunk_size=2000"], 2, "max_tokens"),
        (["ask", "x", "--agent", "somebody", "--set", "chunk_size=2000"], 2, "--strategy"),
        (["ask", "x", "--strategy", "bounded_context", "--set", "chunk_size"], 2, "key=value"),
        (["ask", "x", "--token", "wrong"], 3, "REASOND_TOKEN"),
        (["ask", "x", "--token", ""], 3, "Authentication required"),
        (["ask", "x", "--agent", "nobody"], 4, "nobody"),
        (["ask"], 2, "no question"),
        (["ask", "what", "is", "2", "plus", "2"], 2, 'in quotes: reasond ask "what is 2 plus 2"'),
        (["ask", "\udcff"], 2, "not UTF-8"),
        (["ask", "x", "--resume", "abc"], 2, "--resume"),
        (["ask", "--resume", "abc:x"], 2, "EXECUTION"),
        (["ask", "--resume", "abc"], 4, "abc"),
        (["ask", "x", "--material", "/nonexistent"], 2, "No such file"),
        (["ask", "x", "--material", "/dev/zero"], 2, "2,000,000"),
        (["ask", "x", "--history", "/nonexistent"], 2, "Check --history."),
        (["ask", "x", "--schema", "/nonexistent"], 2, "Check --schema."),
        (["ask", "x", "--history", "-"], 2, "has no messages"),
        (["ask", "x", "--history", "-", "--material", "-"], 2, "one of --material, --schema and --history"),
        (["ask", "--resume", "abc", "--stop", "x"], 2, "--resume"),
        (["ask", "x", "--ca-file", "/nonexistent"], 2, "/nonexistent"),
        (["ask", "x", "--target", "10.1.1.1:1"], 2, "--tls"),
        (["strategies", "--token", "wrong"], 3, "token"),
    ],
)
def test_a_failed_command_has_a_message_a_remedy_and_an_exit_code(
    dev_server: Mapping[str, str], arguments: list[str], code: int, words: str
) -> None:
    environ = {**os.environ, **caller(dev_server)}
    done = run_forked(*arguments, environ=environ, folder=Path(os.sep))
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stdout == ""


def test_material_may_be_a_pdf_or_a_word_document(dev_server: Mapping[str, str], tmp_path: Path) -> None:
    sentences = ["Rain fell.", "The library opens at nine on Mondays.", "Snow fell."]
    options = ("--strategy", "bounded_context")
    for name, content in (("a.pdf", build_pdf(sentences)), ("a.docx", build_docx(sentences))):
        (tmp_path / name).write_bytes(content)
        question = "When does the library open on Mondays?"
        done = run("ask", question, "--material", str(tmp_path / name), *options, environ=caller(dev_server))
        assert done.stdout == "The library opens at nine on Mondays.\n", done.stderr


def test_material_that_is_no_text_is_refused(dev_server: Mapping[str, str], tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(b"abc\xff")
    done = run("ask", "x", "--material", str(file), environ=caller(dev_server))
    assert done.returncode == 2
    assert "not UTF-8 text (byte 3)" in done.stderr


def test_where_nothing_listens_the_remedy_is_named() -> None:
    for command in (["ask", "x"], ["strategies"]):
        done = run(*command, "--target", "127.0.0.1:9")
        assert done.returncode == 7
        assert "No server answers at 127.0.0.1:9" in done.stderr
        assert "reasond serve --dev" in done.stderr


def test_strategies_are_listed_for_people_and_for_programs(dev_server: Mapping[str, str]) -> None:
    shown = run("strategies", environ=caller(dev_server))
    assert shown.returncode == 0
    assert "chain_of_thought (default)" in shown.stdout
    assert "1024 to 32768" in shown.stdout
    found = json.loads(run("strategies", "--json", environ=caller(dev_server)).stdout)
    names = list(ReasoningSettings().enabled_strategies)
    assert [strategy["name"] for strategy in found["strategies"]] == names


def test_a_closed_pipe_is_not_reported_as_an_error(dev_server: Mapping[str, str]) -> None:
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "ask", "What is 7 times 6?", "--json"],
        env={**os.environ, **caller(dev_server)},
        stdout=written,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    os.close(written)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_run_can_be_followed_again_from_any_event(dev_server: Mapping[str, str]) -> None:
    first = run("ask", "What is 7 times 6?", "--json", environ=caller(dev_server)).stdout.splitlines()
    execution = json.loads(first[0])["execution_id"]
    assert run("ask", "--resume", execution, "--json", environ=caller(dev_server)).stdout.splitlines() == first
    rest = run("ask", "--resume", f"{execution}:2", "--json", environ=caller(dev_server)).stdout.splitlines()
    assert rest == first[2:]


@contextmanager
def start_command(arguments: list[str], server: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start `reasond` as a caller of `server`; it is ended with the block."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, **caller(server)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def asking(server: Mapping[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start `reasond ask` against `server`; the block begins when its run has begun."""
    with start_command(["ask", "How?", "--json", *options], server) as process:
        assert process.stdout is not None
        assert "started" in json.loads(process.stdout.readline())
        yield process


def test_ctrl_c_cancels_the_run_on_the_server_and_shows_what_there_is() -> None:
    model = ScriptedModel([Reply(text="<answer>never</answer>", hold=asyncio.Event())])
    with running_server_in_thread(model=model) as listening:
        server = {"grpc": listening.grpc, "token": listening.token}
        with asking(server) as process:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
        assert json.loads(out.splitlines()[-1])["completed"]["finish_reason"] == "FINISH_REASON_CANCELLED"
        assert "Traceback" not in err
        assert model.open_calls == 0


def test_ctrl_c_leaves_a_run_alone_that_shall_keep_running_and_says_how_to_follow_it() -> None:
    hold = asyncio.Event()
    model = ScriptedModel([Reply(text="<answer>late</answer>", hold=hold)])
    with running_server_in_thread(model=model) as listening:
        server = {"grpc": listening.grpc, "token": listening.token}
        with asking(server, "--keep-running") as process:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
        command = err.strip().rpartition(": reasond ")[2].split()
        with start_command(command, server) as follower:
            hold.set()
            out, _ = follower.communicate(timeout=LIMIT_S)
        assert out == "late\n"


def test_a_run_that_the_length_limit_cut_has_its_text_a_warning_and_an_exit_code() -> None:
    with running_server_in_thread(
        model=ScriptedModel([Reply(text="Half a thou", finish=ModelFinish.LENGTH)])
    ) as server:
        done = run("ask", "How?", environ={"REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token})
    assert done.returncode == 5
    assert "warning: the model was cut off" in done.stderr


def test_a_run_that_failed_names_the_execution_that_kept_its_steps() -> None:
    reply = Reply(text="Half a thou", error=ModelFailedError("The model broke off"), error_after=6)
    with running_server_in_thread(model=ScriptedModel([reply])) as server:
        environ = {"REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token}
        done = run("ask", "How?", environ=environ)
        command = done.stderr.rpartition("kept: reasond ")[2].split()
        again = run(*command, "--json", environ=environ)
    assert (done.returncode, done.stdout) == (6, "")
    assert "error: The model broke off" in done.stderr
    assert json.loads(again.stdout.splitlines()[-1])["completed"]["finish_reason"] == "FINISH_REASON_FAILED"
    assert again.returncode == 6


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        ((), {}, "auth.keys"),
        (("--config", "/nonexistent.toml"), {}, "does not exist"),
        (("--dev",), {"REASOND__SERVER__GRPC_ADDRESS": "0.0.0.0:0"}, "0.0.0.0:0"),
        (("--dev",), {"REASOND__LLM__PROVIDER": "openai"}, "llm.model"),
        (("--dev",), {"REASOND__SERVER__GRCP_ADDRESS": "x"}, "did you mean server.grpc_address"),
    ],
)
def test_a_server_that_must_not_start_says_why_before_any_banner(
    options: tuple[str, ...], environ: dict[str, str], words: str
) -> None:
    known = {**os.environ, **FREE_PORTS, **environ}
    done = run_forked("serve", *options, environ=known, folder=Path(os.sep))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "reasond is ready" not in done.stderr + done.stdout


def test_a_port_that_is_taken_is_a_refusal_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for key in FREE_PORTS:
            done = run("serve", "--dev", environ={**FREE_PORTS, key: address})
            assert done.returncode == 2
            assert address.rpartition(":")[2] in done.stderr
            assert "reasond is ready" not in done.stderr
        # As a program: its first line is ours, and none is of the C library that listens.
        done = run_program("serve", "--dev", environ={**FREE_PORTS, "REASOND__SERVER__GRPC_ADDRESS": address})
        assert done.stderr.startswith("error: Cannot listen on")


def test_a_ready_file_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing" / "ready"):
        done = run("serve", "--dev", "--ready-file", str(place), environ=FREE_PORTS)
        assert done.returncode == 2
        assert "ready file" in done.stderr


def test_sigterm_drains_ends_with_zero_and_takes_the_ready_file_along(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev", environ={"REASOND__SERVER__DRAIN_DELAY_S": "0"}) as process:
        assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
        assert readiness(address_of(tmp_path)["http"]) == 200
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    out, err = ((tmp_path / name).read_text("utf-8") for name in ("out", "err"))
    assert process.returncode == 0
    assert out == ""
    assert "reasond is ready" in err
    assert "draining" in err
    assert not (tmp_path / "ready.json").exists()


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev", environ={"REASOND__SERVER__DRAIN_DELAY_S": "300"}) as process:
        address = address_of(tmp_path)["http"]
        process.send_signal(signal.SIGTERM)
        limit = time.monotonic() + LIMIT_S
        while readiness(address) == 200:
            assert time.monotonic() < limit
        process.send_signal(signal.SIGTERM)
        assert ended_within(process, 10)
    assert process.returncode == 0


def test_without_dev_every_line_on_stderr_is_json_and_minted_tokens_are_accepted(tmp_path: Path) -> None:
    environ = {**KEY, "REASOND__SERVER__DRAIN_DELAY_S": "0"}
    token = run("token", "--subject", "ada", "--permission", "admin", environ=environ).stdout.strip()
    with serving(tmp_path, environ=environ) as process:
        ready = address_of(tmp_path)
        assert ready["token"] == ""
        asked = run("ask", "What is 7 times 6?", environ=caller({**ready, "token": token}))
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    out, err = ((tmp_path / name).read_text("utf-8") for name in ("out", "err"))
    assert (asked.returncode, asked.stdout, out, process.returncode) == (0, "42\n", "", 0)
    lines = [json.loads(line) for line in err.splitlines()]
    assert lines[0]["message"] == "ready"
    assert lines[0]["grpc"] == ready["grpc"]
    access = next(line for line in lines if line.get("code") == "OK")
    assert access["subject"] == "ada"
    assert token not in err
    assert "7 times 6" not in err


def test_every_call_of_the_banner_can_be_pasted(dev_server: Mapping[str, str], grpcurl: str) -> None:
    assert grpcurl
    place = Endpoints(grpc=dev_server["grpc"], http=f"http://{dev_server['http']}")
    for name, command in list_calls("What is 7 times 6?", place):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env={**os.environ, **caller(dev_server)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert "42" in done.stdout, name


def test_a_terminal_gets_colours_unless_no_color_is_set(dev_server: Mapping[str, str]) -> None:
    for variables, has_colours in (({}, True), ({"NO_COLOR": "1"}, False)):
        with open_terminal("ask", "What is 7 times 6?", environ={**caller(dev_server), **variables}) as command:
            assert command.finish() == 0
        assert "42" in command.drawn.rows
        assert (b"\x1b[32m" in command.drawn.output) is has_colours
