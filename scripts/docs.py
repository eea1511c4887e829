"""Write all generated pages and files of the documentation, or with --check compare them.

Tables of pages that are written by hand are filled from what the code declares, so that neither can drift. A table
stands between `<!-- table: NAME -->` and `<!-- end -->`: of the configuration by section (`server`,
`reasoning.performance`), of the metrics by group, of the strategies their own statements of their model calls, and of
the profiles of model servers.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasond_server.config.reference import KeyDoc, format_toml_value, list_key_docs, render_example
from reasond_server.llm.profiles import PROFILES, ModelProfile
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.telemetry.catalogue import GROUPS, Metric
from scripts import api_docs, figures, man_page, openapi
from scripts.dashboard import dashboard
from scripts.pages import ROOT, cell, fill_page, table, write_or_check
from scripts.protos import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reasond_server.strategies.strategy import ReasoningStrategy

CONFIGURATION = Path("docs") / "guides" / "configuration.md"
EXAMPLE = Path("config.example.toml")
# What a default in quotes, true or false, or a number says already.
PLAIN_TYPES = {"text", "true or false", "whole number", "number", "choice"}


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that divides it, such as 4 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


def key_row(doc: KeyDoc) -> list[str]:
    """Return the row of a key."""
    allowed = doc.range if doc.type_name in PLAIN_TYPES else doc.type_name
    default = "none" if doc.type_name == "table" else f"`{format_toml_value(doc.default)}`"
    if doc.key.endswith("_bytes"):
        allowed = "-".join(size(int(bound)) for bound in doc.range.split("-"))
        default = f"{default} ({size(doc.default)})"
    return [f"`{doc.key.rpartition('.')[2]}`", cell(default), cell(allowed), cell(doc.description)]


def make_section_tables(docs: Iterable[KeyDoc]) -> dict[str, list[str]]:
    """Return the table of each section."""
    rows: dict[str, list[list[str]]] = {}
    for doc in docs:
        rows.setdefault(doc.section, []).append(key_row(doc))
    return {section: table(("key", "default", "allowed", "meaning"), cells) for section, cells in rows.items()}


METRICS = Path("docs") / "operations" / "metrics.md"
DASHBOARD = Path("docs") / "operations" / "grafana-dashboard.json"


def metric_row(metric: Metric) -> list[str]:
    """Return the row of a metric."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return [f"`{metric.exposed_name}`", metric.kind, labels, cell(metric.meaning)]


def make_metric_tables() -> dict[str, list[str]]:
    """Return the table of each group of metrics."""
    head = ("metric", "kind", "labels", "what it tells")
    return {name: table(head, [metric_row(metric) for metric in group]) for name, group in GROUPS.items()}


STRATEGY_OVERVIEW = Path("docs") / "strategies" / "overview.md"
OWN_PACKAGE = "reasond_server."


def list_built_in() -> Sequence[ReasoningStrategy[Any]]:
    """Return the strategies that this package registers, by name."""
    points = [point for point in STRATEGIES.find_installed() if point.value.startswith(OWN_PACKAGE)]
    return tuple(STRATEGIES.load(sorted(point.name for point in points), installed=points))


def build_cost_rows(strategies: Sequence[ReasoningStrategy[Any]]) -> Iterator[list[str]]:
    """Yield strategy, cost class, formula and whether a run can be replayed from its recorded replies."""
    for strategy in strategies:
        kind = str(strategy.cost_class or "not stated")
        again = "yes" if strategy.is_replayable else "no"
        page = f"{strategy.name}.md"
        name = f"[{strategy.name}]({page})" if (ROOT / STRATEGY_OVERVIEW).with_name(page).exists() else strategy.name
        yield [name, kind, cell(f"`{strategy.cost_formula}`"), again]


def make_cost_table(strategies: Sequence[ReasoningStrategy[Any]]) -> dict[str, list[str]]:
    """Return the table of the costs of strategies."""
    return {
        "costs": table(("strategy", "cost", "model calls", "replayable"), list(build_cost_rows(strategies))),
    }


BACKENDS = Path("docs") / "guides" / "model-backends.md"
MEANINGS = {
    "limit_field": "the field that carries the limit of tokens",
    "max_stops": "stop strings that a call may carry; 0: none",
    "sampling": "whether `temperature` and `seed` may be sent",
    "reasoning_fields": "where reasoning is read from, in order",
    "sends_reasoning_back": "whether reasoning is sent back with the messages of the assistant",
    "stop_match_fields": "where the server tells which stop string matched",
    "stream_usage": "whether the stream reports usage when asked",
    "json_schema": '`"strict"`: enforced; `"guided"`: enforced, but the model does not see it; `"object"`: any JSON '
    'object; `"none"`',
    "most_logprobs": "of how many likely tokens it tells the log probabilities, in place of each token; 0: of none",
    "tools": "whether tools may be offered",
    "forced_tool_choice": "whether the model can be made to call one",
    "named_tool_choice": "one tool can be demanded by its name; where not, that tool alone is offered",
    "long_tool_names": "names of tools may exceed 64 characters; where not, they are shortened",
    "several_system_messages": "whether more than one system message is taken",
    "count_path": "where the server counts the tokens of a prompt, from the address's root",
    "context_window": "tokens of prompt and output together",
    "image_tokens": "most tokens of one image in a prompt, reserved for it; 0: the model takes no images",
    "first_token_s": "seconds from the request to the first content",
    "idle_s": "seconds from one piece of content to the next",
    "total_s": "seconds for a whole call, retries included",
}


def generic_rows() -> Iterator[list[str]]:
    """Yield the field, the value in `generic` and the meaning of every capability."""
    for field in fields(ModelProfile):
        if field.name != "name":
            value = getattr(ModelProfile(), field.name)
            shown = "unknown" if value is None else f"`{format_toml_value(value)}`"
            yield [f"`{field.name}`", cell(shown), cell(MEANINGS[field.name])]


def profile_rows() -> Iterator[list[str]]:
    """Yield each profile with its facts that differ from `generic`."""
    for name, facts in PROFILES.items():
        if not facts:
            continue
        told = ", ".join(f"`{field} = {format_toml_value(fact.value)}`" for field, fact in facts.items())
        yield [f"`{name}`", cell(told)]


def make_profile_tables() -> dict[str, list[str]]:
    """Return the tables of profiles: all fields with their defaults, and what differs from them."""
    return {
        "generic": table(("capability", "in `generic`", "meaning"), list(generic_rows())),
        "profiles": table(("profile", "what differs"), list(profile_rows())),
    }


def make_pages() -> dict[Path, str]:
    """Return path -> content of all pages and files."""
    files = read()
    return {
        **api_docs.make_pages(files),
        **openapi.make_pages(files),
        **fill_page(CONFIGURATION, make_section_tables(list_key_docs())),
        EXAMPLE: render_example(),
        **fill_page(METRICS, make_metric_tables()),
        DASHBOARD: dashboard(),
        **fill_page(STRATEGY_OVERVIEW, make_cost_table(list_built_in())),
        **fill_page(BACKENDS, make_profile_tables()),
        **figures.make_pages(),
        man_page.PATH: man_page.make_page(),
    }


if __name__ == "__main__":
    sys.exit(write_or_check(make_pages(), description=__doc__ or ""))
