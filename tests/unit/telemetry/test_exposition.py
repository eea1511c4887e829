"""The metrics page: two formats, one rendering for many scrapers, and an event loop that is not blocked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from reasond_server.telemetry.exposition import Exposition, forget_process, wants_openmetrics
from reasond_server.telemetry.observers import ServerSnapshot
from tests.unit.telemetry.parts import metrics


def expose() -> tuple[Exposition, list[int]]:
    counted, looks = metrics(), list[int]()

    def before() -> None:
        looks.append(1)
        counted.sample(ServerSnapshot(is_ready=True))

    return Exposition(registry=counted.registry, before=before), looks


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ([], False),
        (["*/*"], False),
        (["text/plain"], False),
        (["application/openmetrics-text"], True),
        (["application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"], True),
        (["text/plain", "Application/OpenMetrics-Text; version=1.0.0"], True),
        (["application/openmetrics-text;q=0"], False),
        (["application/openmetrics-text; q=0.000, */*"], False),
        ([";;;,,,;q=", "\x00"], False),
    ],
)
def test_openmetrics_is_sent_to_those_who_name_it(accept: list[str], *, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


async def test_both_formats_can_be_read_and_tell_the_same() -> None:
    exposition, _ = expose()
    text = await exposition.scrape(["text/plain"])
    whole = await exposition.scrape(["application/openmetrics-text"])
    assert text.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert whole.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    parse_openmetrics: Any = openmetrics.text_string_to_metric_families
    samples = [
        {(sample.name, tuple(sample.labels.items())) for family in families for sample in family.samples}
        for families in (parse_text(text.body.decode()), parse_openmetrics(whole.body.decode()))
    ]
    assert samples[0] == samples[1]
    assert ("reasond_ready", ()) in samples[0]
    assert not any(name.endswith("_created") for name, _ in samples[0])


async def test_many_who_ask_at_once_are_given_one_writing() -> None:
    exposition, looks = expose()
    answers = await asyncio.gather(*(exposition.scrape([]) for _ in range(50)))
    assert len({id(answer.body) for answer in answers}) == 1
    assert len(looks) == 1
    await exposition.scrape([])
    assert len(looks) == 2


async def test_who_leaves_does_not_take_the_answer_from_the_others() -> None:
    exposition, _ = expose()
    first, second = (asyncio.create_task(exposition.scrape([])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).body


def test_forgetting_a_process_of_a_folder_that_is_gone_does_nothing(tmp_path: object) -> None:
    forget_process(1, f"{tmp_path}/nothing")
