from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.base import SettingsError
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.probes import Report, probe
from reasond_server.llm.profiles import ModelProfile, SchemaLevel, find_profile, merge
from tests.unit.llm.openai.odd_server import Manners, odd_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.serving import Engine

BOTH = ("max_tokens", "max_completion_tokens")


def options(base_url: str, profile: ModelProfile | None = None) -> BackendOptions:
    return BackendOptions(
        name="llm", model="m", base_url=base_url, api_key="sk-secret", profile=profile or ModelProfile()
    )


async def probe_server(manners: Manners, profile: ModelProfile | None = None) -> Report:
    with odd_server(manners) as base_url:
        return await probe(options(base_url, profile))


def holds(report: Report) -> dict[str, str]:
    return {finding.subject: finding.holds for finding in report.findings}


async def test_a_real_engine_shows_what_it_can(llama_server: Callable[..., Engine]) -> None:
    engine = llama_server("answer")
    report = await probe(options(engine.base_url))
    assert holds(report) == {
        "usage in the stream": "yes",
        "usage believable": "yes",
        "temperature and seed accepted": "yes",
        "max_tokens = 1 kept": "yes",
        "max_completion_tokens = 1 kept": "yes",
        "stop strings kept": "yes",
        "matching stop told": "no",
        "json_schema enforced": "yes",
        "tools": "unknown",
        "forced tool choice": "unknown",
        "several system messages": "yes",
        "tokens counted": "yes",
        "context window": "yes",
        "cached tokens told": "yes",
        "reasoning told apart": "unknown",
    }
    assert report.base == find_profile("m", "", "llamacpp"), "the engine says what it is"
    assert report.changes == {"max_stops": 16, "context_window": engine.window}
    assert report.warnings == ()
    assert engine.busy_slots() == 0
    again = await probe(options(engine.base_url, merge(report.base, report.changes)))
    assert again.changes == {}, "what was pasted fits"


async def test_a_real_engines_reasoning_is_seen(llama_server: Callable[..., Engine]) -> None:
    report = await probe(options(llama_server("think").base_url))
    assert holds(report)["reasoning told apart"] == "yes"
    assert report.profile.reasoning_fields[0] == "reasoning_content"
    assert "reasoning_fields" not in report.changes, "the engine's own profile knows"


async def test_a_server_that_honours_nothing_is_found_out() -> None:
    manners = Manners()
    report = await probe_server(manners, find_profile("m", "", "openai"))
    assert holds(report) == {
        "usage in the stream": "no",
        "temperature and seed accepted": "yes",
        "max_tokens = 1 kept": "no",
        "max_completion_tokens = 1 kept": "no",
        "stop strings kept": "no",
        "json_schema enforced": "no",
        "json_object enforced": "no",
        "tools": "unknown",
        "forced tool choice": "no",
        "several system messages": "yes",
        "tokens counted": "no",
        "context window": "unknown",
        "cached tokens told": "unknown",
        "reasoning told apart": "unknown",
    }
    assert report.changes == {
        "max_stops": 0,
        "stream_usage": False,
        "json_schema": "none",
        "forced_tool_choice": False,
    }
    assert any("keeps no limit of tokens" in warning for warning in report.warnings)
    assert all(body["stream"] is True and body["model"] == "m" for body in manners.seen)
    assert {header["authorization"] for header in manners.headers} == {"Bearer sk-secret"}


async def test_a_server_like_openais_reasoning_models_is_described() -> None:
    manners = Manners(
        limits=("max_completion_tokens",),
        refuses=("max_tokens", "temperature", "stop"),
        starves=100,
        usage=True,
        schema="json_schema",
        tools="forced",
        systems=1,
    )
    report = await probe_server(manners)
    assert report.changes == {
        "limit_field": "max_completion_tokens",
        "max_stops": 0,
        "sampling": False,
        "json_schema": "guided",
        "several_system_messages": False,
    }
    assert all(
        "Unsupported parameter: stop" in one.evidence for one in report.findings if one.subject.startswith("stop")
    )
    known = await probe_server(manners, find_profile("m", "", "openai-reasoning"))
    assert known.changes == {"several_system_messages": False}
    assert known.profile.json_schema is SchemaLevel.STRICT


async def test_a_server_like_vllm_is_recognised_by_its_list_of_models() -> None:
    manners = Manners(
        limits=BOTH,
        stops=4,
        match_field="stop_reason",
        usage=True,
        schema="json_schema json_object",
        reasoning_field="reasoning",
        tools="free",
        documents={
            "/tokenize": {"count": 7},
            "/v1/models": {"data": [{"id": "other"}, {"id": "m", "owned_by": "vllm", "max_model_len": 8192}]},
        },
    )
    report = await probe_server(manners)
    assert report.base.name == "vllm"
    assert holds(report)["matching stop told"] == "yes"
    assert report.changes == {
        "forced_tool_choice": True,
        "several_system_messages": True,
        "context_window": 8192,
    }


@pytest.mark.parametrize("lie", [Manners(cut_prompt=1), Manners(cut_prompt=90_000), Manners(output_lie=1)])
async def test_a_usage_that_cannot_be_true_is_found_out_and_teaches_nothing(lie: Manners) -> None:
    report = await probe_server(replace(lie, limits=BOTH, usage=True, stops=4))
    assert holds(report)["usage believable"] == "no"
    assert any("usage cannot be true" in warning for warning in report.warnings)
    assert holds(report)["context window"] == "unknown"
    assert "context_window" not in report.changes


async def test_a_server_that_keeps_no_limit_is_closed_before_its_usage_and_nothing_is_learnt_of_that() -> None:
    report = await probe_server(Manners(usage=True, repeats=30))
    assert holds(report)["usage in the stream"] == "unknown"
    assert holds(report)["max_tokens = 1 kept"] == "no"
    assert "stream_usage" not in report.changes
    assert any("keeps no limit of tokens" in warning for warning in report.warnings)


async def test_a_field_of_reasoning_that_was_not_first_becomes_it() -> None:
    report = await probe_server(Manners(limits=BOTH, reasoning_field="reasoning_content"))
    assert report.changes["reasoning_fields"] == ["reasoning_content", "reasoning"]


async def test_a_list_of_stops_that_is_cut_short_shows() -> None:
    assert (await probe_server(Manners(limits=BOTH, stops=1))).changes["max_stops"] == 1
    assert "max_stops" not in (await probe_server(Manners(limits=BOTH, stops=4))).changes


async def test_json_without_a_schema_is_a_level_of_its_own() -> None:
    report = await probe_server(Manners(limits=BOTH, refuses=("json_schema",), schema="json_object"))
    assert report.profile.json_schema is SchemaLevel.OBJECT


async def test_a_tool_that_is_called_only_where_any_is_required_cannot_be_demanded_by_its_name() -> None:
    report = await probe_server(Manners(limits=BOTH, tools="required"))
    assert holds(report)["forced tool choice"] == "yes"
    assert holds(report)["tool demanded by name"] == "no"
    assert report.changes["named_tool_choice"] is False
    assert "forced_tool_choice" not in report.changes
    assert "named_tool_choice" not in (await probe_server(Manners(limits=BOTH, tools="forced"))).changes


async def test_tools_that_are_refused_are_left_out() -> None:
    report = await probe_server(Manners(limits=BOTH, refuses=("tools",)))
    assert (report.profile.tools, report.profile.forced_tool_choice) == (False, False)


@pytest.mark.parametrize(
    ("manners", "window"),
    [
        (Manners(limits=BOTH, usage=True, window=4096), 4096),
        (Manners(limits=BOTH, usage=True, cut_prompt=2048), 2048),
        (Manners(limits=BOTH, documents={"/props": {"default_generation_settings": {"n_ctx": 512}}}), 512),
        (Manners(limits=BOTH, documents={"/v1/models": {"data": [{"id": "x", "context_length": 999}]}}), 999),
        (Manners(limits=BOTH, usage=True), None),
        (Manners(limits=BOTH, documents={"/v1/models": {"data": None}, "/props": []}), None),
    ],
)
async def test_the_window_is_what_is_told_or_what_a_long_prompt_shows(manners: Manners, window: int | None) -> None:
    report = await probe_server(manners)
    assert report.profile.context_window == window
    is_cut = any("silently cut" in warning for warning in report.warnings)
    assert is_cut == (manners.cut_prompt > 0)


@pytest.mark.parametrize(("tokens", "is_warned"), [(4096, True), (32_768, False)])
async def test_ollama_is_known_by_what_it_has_loaded_whoever_published_the_model(tokens: int, is_warned: bool) -> None:  # noqa: FBT001 - a row
    loaded = {"models": [{"name": "n:latest", "context_length": 1}, {"name": "m:latest", "context_length": tokens}]}
    listed = {"data": [{"id": "n:latest", "owned_by": "library"}, {"id": "m:latest", "owned_by": "somebody"}]}
    documents = {"/api/ps": loaded, "/v1/models": listed}
    report = await probe_server(Manners(limits=("max_tokens",), usage=True, cut_prompt=tokens, documents=documents))
    assert report.base.name == "ollama"
    assert report.profile.context_window == tokens
    assert any("OLLAMA_CONTEXT_LENGTH" in warning for warning in report.warnings) == is_warned


async def test_a_server_that_answers_whole_instead_of_streaming_is_still_read() -> None:
    report = await probe_server(Manners(limits=BOTH, whole=True))
    assert holds(report)["max_tokens = 1 kept"] == "yes"


@pytest.mark.parametrize(
    ("manners", "kind", "words"),
    [
        (Manners(status=401, error="no such key sk-secret"), PermissionMissingError, r"HTTP 401: no such key \*\*\*"),
        (Manners(status=404, error="no model"), ModelFailedError, "HTTP 404: no model"),
        (Manners(status=500, error="x" * 999), ModelFailedError, "HTTP 500: x+…"),
        (Manners(refuses=("messages",)), ModelFailedError, "HTTP 400"),
        (Manners(content_type="text/html"), ModelFailedError, "no JSON"),
        (Manners(breaks=True), ModelFailedError, "broke off"),
    ],
)
async def test_a_server_that_answers_no_plain_call_is_an_error(
    manners: Manners, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await probe_server(manners)


async def test_a_server_that_hangs_costs_no_more_than_the_limit() -> None:
    with odd_server(Manners(hangs=True)) as base_url, pytest.raises(ModelFailedError, match=r"no end within 0\.2 s"):
        await probe(options(base_url), limit_s=0.2)


async def test_nothing_at_the_address_is_told_as_such() -> None:
    with pytest.raises(ModelUnavailableError, match="nothing can be reached at http://127"):
        await probe(options("http://127.0.0.1:9/v1"))


async def test_azure_is_called_at_its_own_address() -> None:
    manners = Manners(limits=BOTH)
    with odd_server(manners) as base_url:
        azure = replace(options(base_url.removesuffix("/v1")), azure_api_version="2024-10-21")
        await probe(azure)
    assert {header["path"] for header in manners.headers} == {
        "/openai/deployments/m/chat/completions?api-version=2024-10-21"
    }
    assert {header["api-key"] for header in manners.headers} == {"sk-secret"}
    assert not any(name.lower() == "authorization" for header in manners.headers for name in header)


async def test_the_responses_interface_is_not_probed() -> None:
    with pytest.raises(SettingsError, match="Responses interface, which is not probed"):
        await probe(replace(options("http://127.0.0.1:9/v1"), protocol="responses"))


async def test_probes_can_be_cancelled() -> None:
    with odd_server(Manners(hangs=True)) as base_url:
        task = asyncio.create_task(probe(options(base_url)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_server_that_leaves_the_marks_of_reasoning_in_the_text_is_found_out() -> None:
    manners = Manners(limits=BOTH, text="Let me count.</think>\n\none two three four five six seven")
    report = await probe_server(manners)
    assert holds(report)["reasoning told apart"] == "no"
