"""The Grafana dashboard: rows of panels, each with Prometheus queries; `scripts.tables` writes it.

Import it into Grafana 11 (Dashboards, New, Import); Grafana then asks for the data source. The panels have only four
forms, so that a reader who understands one row understands all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JOB = 'job="$job"'
WINDOW = "$__rate_interval"
WIDTH, HEIGHT = 8, 7
COLUMNS = 24 // WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph: `queries` are pairs of PromQL and legend; `unit` is the unit's name in Grafana."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    is_stat: bool = False


def rate(metric: str, by: str = "", *, where: str = "") -> str:
    """Return the query for the increase of a counter per second, summed by the labels in `by`."""
    selector = f"{JOB}, {where}" if where else JOB
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric}{{{selector}}}[{WINDOW}]))"


def total(metric: str, by: str = "") -> str:
    """Return the query for a gauge, summed up over all instances."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({metric}{{{JOB}}})"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return the query for a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels)})"


def mean(metric: str, by: str) -> str:
    """Return the query for the mean of a histogram."""
    return f"{rate(f'{metric}_sum', by)} / {rate(f'{metric}_count', by)}"


def percentiles(title: str, metric: str, by: str = "") -> Panel:
    """Return a panel with the median and the 99th percentile of a histogram of seconds."""
    label = f" {{{{{by}}}}}" if by else ""
    queries = [(quantile(0.5, metric, by), f"p50{label}"), (quantile(0.99, metric, by), f"p99{label}")]
    return Panel(title=title, queries=queries, unit="s")


def rates(title: str, metric: str, by: str, *, unit: str = "short") -> Panel:
    """Return a panel with the increase of a counter per second by the labels in `by`, which form the legend."""
    return Panel(title=title, queries=[(rate(metric, by), legend(by))], unit=unit)


def totals(title: str, metric: str, by: str, *, unit: str = "short") -> Panel:
    """Return a panel with a gauge by the labels in `by`, which form the legend."""
    return Panel(title=title, queries=[(total(metric, by), legend(by))], unit=unit)


def gauges(title: str, metrics: Mapping[str, str], *, is_stat: bool = False) -> Panel:
    """Return a panel with gauges, each by its legend."""
    return Panel(title=title, queries=[(total(name), shown) for shown, name in metrics.items()], is_stat=is_stat)


def legend(by: str) -> str:
    """Return the legend that shows the labels in `by`."""
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


ENDS = "reasond_executions_total"
FAILURES = rate(ENDS, where='finish_reason="failed"')
FAILED_SHARE = f"{FAILURES} / {rate(ENDS)}"
COMMIT_SIZE = f"{rate('reasond_store_entries_total')} / {rate('reasond_store_commit_duration_seconds_count')}"
TOKEN_RATE = rate("reasond_tokens_total", "strategy, model", where='kind=~"input|output"')
STORE_FILL = f"max (reasond_store_fill_ratio{{{JOB}}})"
CLOCK_JUMP = f"max (reasond_store_clock_jump_seconds{{{JOB}}})"
AWAITING = f"max (reasond_turns_awaiting{{{JOB}}})"

ROWS: dict[str, Sequence[Panel]] = {
    "At a glance": (
        Panel(title="Calls per second", queries=[(rate("reasond_calls_total"), "")], is_stat=True),
        Panel(title="Executions that failed", queries=[(FAILED_SHARE, "")], unit="percentunit", is_stat=True),
        gauges(
            "Ready / draining / reporting",
            {"ready": "reasond_ready", "draining": "reasond_draining", "reporting": "reasond_processes"},
            is_stat=True,
        ),
    ),
    "Calls": (
        rates("Calls by method", "reasond_calls_total", "transport, method", unit="reqps"),
        rates("Calls by code", "reasond_calls_total", "transport, code", unit="reqps"),
        rates("Calls of gRPC that began", "reasond_rpcs_started_total", "method", unit="reqps"),
        percentiles("Duration of calls", "reasond_call_duration_seconds", "method"),
        Panel(
            title="At work",
            queries=[
                (total("reasond_calls_in_flight", "transport"), "calls {{transport}}"),
                (total("reasond_streams_open", "transport"), "streams {{transport}}"),
            ],
        ),
        rates("Errors by reason", "reasond_errors_total", "transport, reason", unit="reqps"),
        rates("Denials", "reasond_denials_total", "kind", unit="reqps"),
        rates("API keys", "reasond_api_key_uses_total", "key_id, outcome", unit="reqps"),
        rates("Slow consumers", "reasond_slow_consumers_total", "transport"),
        rates("HTTP requests", "reasond_http_requests_total", "route, status", unit="reqps"),
    ),
    "Executions": (
        rates("Ends by strategy", "reasond_executions_total", "strategy", unit="ops"),
        rates("Ends by reason", "reasond_executions_total", "finish_reason", unit="ops"),
        percentiles("Duration", "reasond_execution_duration_seconds", "strategy"),
        rates("Steps", "reasond_steps_total", "strategy", unit="ops"),
        gauges(
            "Running, waiting, places",
            {
                "running": "reasond_executions_running",
                "waiting": "reasond_executions_queued",
                "places": "reasond_execution_places",
            },
        ),
        percentiles("Wait for a place", "reasond_queue_wait_seconds", "outcome"),
        Panel(
            title="Saved against the baseline (mean)",
            queries=[(f"1 - {mean('reasond_compute_ratio', 'measure, baseline')}", "{{measure}} {{baseline}}")],
            unit="percentunit",
        ),
        Panel(
            title="Recovered and left",
            queries=[
                (rate("reasond_recoveries_total", "outcome"), "{{outcome}}"),
                (rate("reasond_executions_left_total", "reason"), "{{reason}}"),
            ],
        ),
    ),
    "Tokens and budgets": (
        rates("Tokens by kind", "reasond_tokens_total", "kind"),
        Panel(
            title="Tokens by strategy and model",
            queries=[(TOKEN_RATE, legend("strategy, model"))],
        ),
        rates("Cost in US dollars", "reasond_cost_usd_total", "strategy, model"),
        rates("Budgets of callers", "reasond_budget_tokens_total", "event"),
    ),
    "Model and tools": (
        rates("Calls by outcome", "reasond_model_calls_total", "model, outcome", unit="ops"),
        percentiles("First content", "reasond_model_first_content_seconds", "model"),
        percentiles("Whole call", "reasond_model_call_duration_seconds", "model"),
        Panel(
            title="Tokens of a call",
            queries=[
                (quantile(0.5, "reasond_model_call_tokens", "kind"), "p50 {{kind}}"),
                (quantile(0.99, "reasond_model_call_tokens", "kind"), "p99 {{kind}}"),
            ],
        ),
        rates("Retries", "reasond_model_retries_total", "backend, reason", unit="ops"),
        totals("Circuit breaker", "reasond_model_breaker_state", "backend, state"),
        percentiles("Wait for room at the backend", "reasond_model_room_wait_seconds", "backend"),
        rates("Usage that was mended", "reasond_model_usage_mended_total", "backend, source"),
        rates("Tool calls", "reasond_tool_calls_total", "tool, outcome", unit="ops"),
        percentiles("Duration of tools", "reasond_tool_duration_seconds", "tool"),
        rates("Programs of tasks", "reasond_program_duration_seconds_count", "outcome", unit="ops"),
        percentiles("Duration of programs", "reasond_program_duration_seconds", "outcome"),
    ),
    "Turns": (
        rates("Exits", "reasond_turns_total", "exit", unit="ops"),
        Panel(title="Waiting for their client", queries=[(AWAITING, "turns")]),
        Panel(
            title="Hand-offs",
            queries=[
                (rate("reasond_handoffs_total", "outcome"), "{{outcome}}"),
                (rate("reasond_handoff_calls_total"), "calls"),
            ],
        ),
        percentiles("Wait for the client", "reasond_handoff_wait_seconds", "outcome"),
        rates("Re-entries", "reasond_reentries_total", "outcome", unit="ops"),
        Panel(
            title="Tool calls whose outcome nobody knows", queries=[(rate("reasond_tool_outcomes_unknown_total"), "")]
        ),
        rates("Tokens of results in prompts", "reasond_context_tokens_total", "goal, rendering"),
    ),
    "Repairs": (
        rates("Rounds", "reasond_repair_reflection_iterations_total", "job", unit="ops"),
        totals("Candidates in searches", "reasond_repair_candidates_active", "job"),
        Panel(
            title="Scores of candidates",
            queries=[
                (quantile(0.5, "reasond_repair_critic_score"), "p50"),
                (quantile(0.9, "reasond_repair_critic_score"), "p90"),
            ],
        ),
        rates("Searches that ended early", "reasond_repair_early_terminations_total", "job", unit="ops"),
        rates("Checks", "reasond_repair_check_duration_seconds_count", "level, outcome", unit="ops"),
        percentiles("Duration of checks", "reasond_repair_check_duration_seconds", "outcome"),
    ),
    "Store and process": (
        percentiles("Commit", "reasond_store_commit_duration_seconds"),
        Panel(title="Entries in a commit (mean)", queries=[(COMMIT_SIZE, "")]),
        rates("Webhooks", "reasond_webhooks_total", "outcome", unit="ops"),
        rates("Failures of the store", "reasond_store_failures_total", "reason"),
        Panel(title="Store, taken by what cannot go", queries=[(STORE_FILL, "")], unit="percentunit"),
        Panel(title="Jump of the clock", queries=[(CLOCK_JUMP, "")], unit="s"),
        percentiles("Lag of the event loop", "reasond_event_loop_lag_seconds"),
        rates("CPU", "process_cpu_seconds_total", "instance", unit="percentunit"),
        totals("Resident memory", "process_resident_memory_bytes", "instance", unit="bytes"),
        Panel(
            title="Open files, of those that may be",
            queries=[(f"sum by (instance) (process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}})", "{{instance}}")],
            unit="percentunit",
        ),
        Panel(title="Age", queries=[(f"time() - process_start_time_seconds{{{JOB}}}", "{{instance}}")], unit="s"),
        Panel(
            title="Limits kept apart, versions",
            queries=[
                (total("reasond_limits_degraded"), "processes without the shared limits"),
                (f"count by (version, python) (reasond_build_info{{{JOB}}})", "{{version}} on {{python}}"),
            ],
        ),
    ),
}


def expressions() -> Sequence[str]:
    """Return the PromQL of every panel."""
    return [query for row in ROWS.values() for panel in row for query, _ in panel.queries]


def _panel(panel: Panel, *, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend or "__auto", "range": True}
        for place, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def panels() -> Sequence[dict[str, Any]]:
    """Return the rows and panels with their positions."""
    made: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        made.append(
            {"id": len(made) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        for place_in_row, panel in enumerate(row):
            below, beside = divmod(place_in_row, COLUMNS)
            made.append(_panel(panel, number=len(made) + 1, x=beside * WIDTH, y=y + 1 + below * HEIGHT))
        y += 1 + -(-len(row) // COLUMNS) * HEIGHT
    return made


def dashboard() -> str:
    """Return the dashboard as JSON that Grafana imports."""
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": "label_values(reasond_build_info, job)", "refId": "job"},
            "refresh": 2,
        },
    ]
    whole = {
        "title": "reasond",
        "uid": "reasond",
        "description": "Made by `make docs` from scripts/dashboard.py.",
        "tags": ["reasond"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels(),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
