from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.config import Settings, load
from reasond_server.errors.base import SettingsError
from reasond_server.turns.policy import Mode, OnToolFailure, OnUnknownOutcome, Synthesis, TurnContext, TurnPolicy

if TYPE_CHECKING:
    from pathlib import Path


def load_settings(text: str, tmp_path: Path) -> Settings:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, {}).settings


def test_a_section_left_out_is_the_policy_without_arguments() -> None:
    assert Settings().turns == TurnPolicy()


EVERY_KEY = """
    [turns]
    default_mode = "careful"
    max_model_calls = 1
    max_tool_calls = 2
    max_calls_per_reply = 3
    tool_parallelism = 4
    on_tool_failure = "tell"
    on_unknown_outcome = "ask"
    handoff_ttl_s = 60
    max_active_s = 6
    session_retention_s = 3600
    max_client_tools = 0
    max_result_bytes = 65536
    max_kept_bytes = 1048576
    max_tokens = 64
    temperature = 0
    needs_approval = ["current_time", "files__write"]
    [turns.context]
    synthesis = "never"
    summaries = true
    summary_backend = "small"
    summary_tokens = 64
    [turns.modes.careful]
    instructions = "i"
    tools = []
    backend = "small"
    welcome = "w"
    [turns.modes.free]
    tools = ["calculator", "http_get", "files__read"]
    [llm.backends.small]
    model = "m"
    [tools.http_get]
    allow_hosts = ["a.test"]
    [tools.mcp.files]
    command = "x"
    """


def test_every_key_reaches_the_policy(tmp_path: Path) -> None:
    assert load_settings(EVERY_KEY, tmp_path).turns == TurnPolicy(
        default_mode="careful",
        modes={
            "careful": Mode(instructions="i", tools=(), backend="small", welcome="w"),
            "free": Mode(tools=("calculator", "http_get", "files__read")),
        },
        needs_approval=("current_time", "files__write"),
        max_model_calls=1,
        max_tool_calls=2,
        max_calls_per_reply=3,
        tool_parallelism=4,
        on_tool_failure=OnToolFailure.TELL,
        on_unknown_outcome=OnUnknownOutcome.ASK,
        handoff_ttl_s=60,
        max_active_s=6,
        session_retention_s=3600,
        max_client_tools=0,
        max_result_bytes=65_536,
        max_kept_bytes=1_048_576,
        max_tokens=64,
        temperature=0,
        context=TurnContext(synthesis=Synthesis.NEVER, summaries=True, summary_tokens=64, summary_backend="small"),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[turns]\ndefault_mode = "careful"', "turns.default_mode: 'careful' has no table in turns.modes"),
        (
            '[turns]\ndefault_mode = "carefull"\n[turns.modes.careful]',
            "turns.default_mode: 'carefull' has no table in turns.modes; did you mean 'careful'?",
        ),
        ('[turns.modes.a]\ntools = ["calculater"]', "turns.modes.a.tools: names 'calculater', which is no tool of"),
        ('[turns.modes.a]\ntools = ["http_get"]', "turns.modes.a.tools: names 'http_get', which is no tool of"),
        ('[turns.modes.a]\ntools = ["files__read"]', "turns.modes.a.tools: names 'files__read', which is no tool of"),
        (
            '[turns]\nneeds_approval = ["f__write"]\n[tools.mcp.f]\ncommand = "x"\nallow_tools = ["read"]',
            "turns.needs_approval: names 'f__write', which is no tool of",
        ),
        ('[turns.modes.a]\nbackend = "b"', "turns.modes.a.backend: 'b' has no table in llm.backends"),
        ('[turns.context]\nsummary_backend = "b"', "turns.context.summary_backend: names 'b', which has no table in"),
        ("[turns.context]\nsummary_tokens = 63", "turns.context.summary_tokens"),
        ("[turns.modes.A]", "turns.modes.A"),
        ("[turns.modes.a]\ntols = []", "turns.modes.a.tols: is no known key"),
        (
            "[turns.context]\nsynthesi = 1",
            "turns.context.synthesi: is no known key; did you mean turns.context.synthesis?",
        ),
        ("[turns]\nmax_tokens = true", "turns.max_tokens: must be a whole number"),
        ('[turns]\nmax_tokens = "64"', "turns.max_tokens: must be a whole number"),
        ("[turns]\ntemperature = nan", "turns.temperature: must be a finite number"),
        ("turns = 1", "turns: is a table; set the keys in it"),
        ('[turns]\nneeds_approval = ["a b"]', "turns.needs_approval[0]"),
        ("[turns]\nhandoff_ttl_s = 59", "turns.handoff_ttl_s"),
        ("[turns]\nmax_client_tools = 257", "turns.max_client_tools"),
        ("[turns]\nmax_tokens = 63", "turns.max_tokens"),
        ('[turns]\non_tool_failure = "ask"', "turns.on_tool_failure"),
        ("[turns.context]\nhistory_share = 0.95", "turns.context.history_share"),
        ("[turns.context]\npreview_tokens = 127", "turns.context.preview_tokens"),
    ],
)
def test_what_cannot_work_is_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(text, tmp_path)
    assert told in caught.value.full_message
