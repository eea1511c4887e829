"""All metrics with their names, meanings and labels; the documentation page of the metrics is generated from them.

Durations of models and runs have the buckets that OpenTelemetry's GenAI conventions recommend
(open-telemetry/semantic-conventions-genai, "gen_ai.client.operation.duration"), sizes of RPCs those of gRFC A66. Names
follow Prometheus: the unit last, counters end in `_total`.

What is counted of them is here as well, with bounded sets of labels. Counters are kept in plain numbers and flushed to
`prometheus_client` with every sample. Its own take a lock for each increment, and take three times as long in files
that several processes share. One event loop counts and samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from reasond_server.types.values import value

Kind = Literal["counter", "gauge", "histogram"]
Merged = Literal["livesum", "livemax", "livemin"]

GENAI_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
GENAI_TOKENS: Final = tuple(float(4**power) for power in range(14))
CALL_SECONDS: Final = (0.001, 0.0025, 0.005, *GENAI_SECONDS, 163.84, 327.68)
WAIT_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
HANDOFF_SECONDS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0)
CHECK_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
RPC_BYTES: Final = (0.0, 1024.0, 2048.0, *(float(4096 * 4**power) for power in range(11)))
SCORES: Final = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 84.0, 90.0, 95.0, 100.0)
RATIOS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 4.0)


@value
class Metric:
    """One metric. `merged` says how the gauges of several live processes become one; ended processes do not count."""

    name: str
    kind: Kind
    meaning: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    merged: Merged = "livesum"

    @property
    def exposed_name(self) -> str:
        """The name in queries; for a histogram it excludes _bucket, _count and _sum."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _declare(
    kind: Kind, name: str, meaning: str, *, buckets: Sequence[float] = (), merged: Merged = "livesum"
) -> Metric:
    """Return a metric; `name` has its labels as a query writes them: `reasond_errors{transport, reason}`."""
    name, _, labels = name.removesuffix("}").partition("{")
    return Metric(
        name=name,
        kind=kind,
        meaning=meaning,
        labels=labels.split(", ") if labels else (),
        buckets=buckets,
        merged=merged,
    )


_counter = partial(_declare, "counter")
_gauge = partial(_declare, "gauge")
_histogram = partial(_declare, "histogram")


CALLS: Final = (
    _counter(
        "reasond_calls{transport, method, code}",
        "Calls that ended, by the status of gRPC or what JSON-RPC has in its place; streams count when they end.",
    ),
    _counter("reasond_rpcs_started{method}", "Calls of gRPC that began."),
    _histogram(
        "reasond_call_duration_seconds{transport, method, code}",
        "Time from the arrival of a call to its end.",
        buckets=CALL_SECONDS,
    ),
    _histogram(
        "reasond_rpc_received_bytes{method, code}",
        "Bytes of the requests of an RPC; what a client compressed counts unpacked.",
        buckets=RPC_BYTES,
    ),
    _histogram(
        "reasond_rpc_sent_bytes{method, code}",
        "Bytes of the responses of an RPC; none is compressed.",
        buckets=RPC_BYTES,
    ),
    _gauge("reasond_calls_in_flight{transport}", "Calls at work: RPCs, and HTTP requests of every kind."),
    _gauge("reasond_streams_open{transport}", "Streams of events at work."),
    _counter(
        "reasond_errors{transport, reason}",
        "Calls that failed, by the reason of the table of errors; transport http: refused tokens and scrapes.",
    ),
    _counter(
        "reasond_denials{kind}",
        "Calls that were refused: authentication, permission, rate, concurrency, budget (of the caller, also within a "
        "run), overload, draining, store or issuer (out of reach).",
    ),
    _counter(
        "reasond_api_key_uses{key_id, outcome}",
        "Uses of API keys by the public id of the key: accepted, expired, revoked. Wrong and unknown keys are only "
        "denials.",
    ),
    _counter("reasond_slow_consumers{transport}", "Clients cut off because they did not read, by gRPC or HTTP."),
    _counter("reasond_http_requests{route, status}", "HTTP requests, by address and status."),
)

EXECUTIONS: Final = (
    _counter("reasond_executions{strategy, finish_reason}", "Executions that ended here."),
    _histogram(
        "reasond_execution_duration_seconds{strategy}",
        "Time from the beginning of an execution to its result, waits for a place left out.",
        buckets=CALL_SECONDS,
    ),
    _counter("reasond_steps{strategy}", "Steps that were made, counted when their run ends or leaves."),
    _counter(
        "reasond_tokens{strategy, model, kind}",
        "Tokens that model calls were charged with: input, output, cached_input (part of input), reasoning (part of "
        "output). Calls replayed from the log are not counted.",
    ),
    _counter(
        "reasond_cost_usd{strategy, model}",
        "What model calls cost in US dollars, for models whose prices the operator gives ([llm] input_price_usd).",
    ),
    _histogram(
        "reasond_compute_ratio{measure, baseline}",
        "Compute of a bounded-context run over that of the baseline: 1 less this is saved, of attention, kv_read or "
        "tokens. Runs that failed or were cancelled are left out.",
        buckets=RATIOS,
    ),
    _gauge("reasond_executions_running", "Executions that hold a place."),
    _gauge("reasond_executions_queued", "Executions that wait for a place."),
    _gauge("reasond_execution_places", "Places for executions: max_concurrent_requests."),
    _histogram(
        "reasond_queue_wait_seconds{outcome}",
        "Waits for a place, of those who had to: admitted, timeout, draining, gone (the caller left).",
        buckets=WAIT_SECONDS,
    ),
    _counter(
        "reasond_recoveries{outcome}",
        "Runs that another process left behind: resumed here, or written_off.",
    ),
    _counter(
        "reasond_executions_left{reason}",
        "Runs that another process goes on with: handed_over, lost to it, or fenced, where this one was out of touch "
        "with the store for too long to know.",
    ),
)

MODELS: Final = (
    _counter(
        "reasond_model_calls{model, outcome}",
        "Model calls, by how they ended: the model's finish, a reason of the table of errors, or closed by the run.",
    ),
    _histogram(
        "reasond_model_call_duration_seconds{model, outcome}",
        "Time of a model call, its retries included.",
        buckets=GENAI_SECONDS,
    ),
    _histogram(
        "reasond_model_call_tokens{model, kind}", "Tokens of a model call: input, output.", buckets=GENAI_TOKENS
    ),
    _histogram(
        "reasond_model_first_content_seconds{model}",
        "Time from the beginning of a model call to its first text, reasoning or tool call.",
        buckets=GENAI_SECONDS,
    ),
    _counter("reasond_model_retries{backend, reason}", "Attempts that were repeated, by the reason."),
    _histogram(
        "reasond_model_room_wait_seconds{backend}",
        "Waits for a backend that worked on max_concurrency calls, of those that had to.",
        buckets=WAIT_SECONDS,
    ),
    _gauge(
        "reasond_model_breaker_state{backend, state}",
        "1 for the state that the circuit breaker is in, 0 for the others; several processes: how many are in it.",
    ),
    _counter(
        "reasond_model_usage_mended{backend, source}",
        "Model calls whose server told no usage (estimated) or one that could not be true (partial).",
    ),
)

LIMITS: Final = (
    _counter(
        "reasond_budget_tokens{event}",
        "Tokens of the budgets of callers: reserved before model calls, settled (used) after them, refunded, and "
        "overdrawn by servers that wrote more than was asked for.",
    ),
    _gauge(
        "reasond_limits_degraded",
        "Processes that cannot reach the store of the limits and do what on_backend_failure says.",
    ),
    _counter(
        "reasond_tool_calls{tool, outcome}",
        "Tool calls: ok, failed, timeout, invalid_arguments, unknown_tool, refused (the budget's calls are used up).",
    ),
    _histogram("reasond_tool_duration_seconds{tool}", "Time of a tool call.", buckets=GENAI_SECONDS),
    _histogram(
        "reasond_program_duration_seconds{outcome}",
        "Time of a program of a task in the sandbox, by how it ended: ok, failed (exit code), limited (by a limit), "
        "not_run (the sandbox could not run it).",
        buckets=CHECK_SECONDS,
    ),
)

TURNS: Final = (
    _counter(
        "reasond_turns{exit}",
        "Exits of turns: done, client_tools (handed off), failed, cancelled, expired (nobody came back).",
    ),
    _gauge(
        "reasond_turns_awaiting",
        "Turns in the store that wait for their client, counted every 5 seconds; each process tells them all: take the "
        "largest.",
        merged="livemax",
    ),
    _counter(
        "reasond_handoffs{outcome}",
        "Hand-offs to clients: handed_off, and what became of them: settled, expired, cancelled.",
    ),
    _counter("reasond_handoff_calls", "Calls that clients were asked to settle."),
    _histogram(
        "reasond_handoff_wait_seconds{outcome}",
        "Time from a hand-off to its end, by whatever process took it up.",
        buckets=HANDOFF_SECONDS,
    ),
    _counter(
        "reasond_reentries{outcome}",
        "Re-entries: accepted, replayed (the same one again), or refused, by the reason of the table of errors.",
    ),
    _counter(
        "reasond_tool_outcomes_unknown",
        "Tool calls during which a process went down, and nobody knows what came of them.",
    ),
    _counter(
        "reasond_context_tokens{goal, rendering}",
        "Tokens of results in prompts, by what the prompt was for (planning, synthesis) and how they appeared: full, "
        "preview, summary, handle.",
    ),
)

REPAIRS: Final = (
    _counter("reasond_repair_reflection_iterations", "Rounds of searches that ended."),
    _gauge("reasond_repair_candidates_active", "Candidates that the searches of this process hold."),
    _histogram(
        "reasond_repair_critic_score", "Scores of candidates, 0-100; at most 84 while a check fails.", buckets=SCORES
    ),
    _counter(
        "reasond_repair_early_terminations",
        "Searches that ended because a candidate passed the gate with critique_threshold.",
    ),
    _histogram(
        "reasond_repair_check_duration_seconds{level, outcome}",
        "Time of a check, by the level of its sandbox (bwrap, landlock) and how it ended: passed, failed, timed_out, "
        "unknown (it could not be run).",
        buckets=CHECK_SECONDS,
    ),
)

SERVER: Final = (
    _histogram("reasond_store_commit_duration_seconds", "Time of a commit of events.", buckets=WAIT_SECONDS),
    _counter("reasond_store_entries", "Events and records that were committed; over the commits: the size of a batch."),
    _counter(
        "reasond_store_failures{reason}",
        "Writes that the store did not take: attempts that failed, and parts that were refused.",
    ),
    _counter("reasond_webhooks{outcome}", "Attempts to send webhooks: delivered, failed (it is sent again), given_up."),
    _gauge(
        "reasond_store_fill_ratio",
        "Share of the store that is taken by what cannot make room; 0 for PostgreSQL, whose bounds are not known.",
        merged="livemax",
    ),
    _gauge(
        "reasond_store_clock_jump_seconds",
        "By how much the clock of the store jumped, while nothing expires by it; 0 if it did not.",
        merged="livemax",
    ),
    _gauge("reasond_ready", "Processes that are ready for work."),
    _gauge("reasond_draining", "Processes that are shutting down."),
    _histogram(
        "reasond_event_loop_lag_seconds",
        "How late the event loop woke up a task that asked for it, four times a second.",
        buckets=LAG_SECONDS,
    ),
    _gauge(
        "reasond_build_info{version, python}", "1, with the versions of the server and of Python.", merged="livemax"
    ),
    _gauge("reasond_processes", "Processes that report."),
    _counter("process_cpu_seconds", "CPU time, user and system."),
    _gauge("process_resident_memory_bytes", "Resident memory."),
    _gauge("process_open_fds", "Open file descriptors."),
    _gauge("process_max_fds", "File descriptors that may be open."),
    _gauge("process_start_time_seconds", "When the oldest process began, in seconds since 1970.", merged="livemin"),
)

GROUPS: Final[Mapping[str, Sequence[Metric]]] = MappingProxyType(
    {
        "Calls": CALLS,
        "Executions": EXECUTIONS,
        "Model calls": MODELS,
        "Limits and tools": LIMITS,
        "Turns": TURNS,
        "Repairs": REPAIRS,
        "Store and process": SERVER,
    }
)
"""The metrics by group, in the order of the documentation."""

CATALOGUE: Final[Mapping[str, Metric]] = MappingProxyType(
    {metric.name: metric for group in GROUPS.values() for metric in group}
)
"""The metrics by their names, without _total."""


OTHER: Final = "other"


@value
class Vocabulary:
    """The allowed values of labels: `words` by the name of the label; a label without words accepts any value.

    A label has no words if only the server's code sets its values. An unknown value `FAMILY__NAME` is counted as
    `FAMILY__other` if that is a word, any other unknown value as `other`.
    """

    words: Mapping[str, frozenset[str]]

    def bound_value(self, label: str, value: str) -> str:
        """Return `value` if it is one of the label's words, else the word that stands for it."""
        known = self.words.get(label)
        if known is None or value in known:
            return value
        family = f"{value.partition('__')[0]}__{OTHER}"
        return family if family in known else OTHER


class Count:
    """A series of a counter."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._held = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add `amount`."""
        self._held += amount

    def flush(self) -> None:
        """Pass the sum to the library."""
        if self._held:
            held, self._held = self._held, 0.0
            self._counter.inc(held)


SeriesT = TypeVar("SeriesT")
MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)


class SeriesFamily(dict[tuple[str, ...], SeriesT]):
    """The series of one metric by the values of its labels in order; each series is made once.

    `make` returns the series for bounded values. The class is a dictionary, so that a lookup needs no call of Python
    code. Values outside the vocabulary are not stored as keys, because their number is unbounded.
    """

    def __init__(
        self, *, labels: tuple[str, ...], vocabulary: Vocabulary, make: Callable[[tuple[str, ...]], SeriesT]
    ) -> None:
        super().__init__()
        self._labels = labels
        self._vocabulary = vocabulary
        self._make = make

    def __missing__(self, values: tuple[str, ...]) -> SeriesT:
        """Return the series for these label values after they are bounded."""
        bounded = tuple(map(self._vocabulary.bound_value, self._labels, values))
        if bounded not in self:
            self[bounded] = self._make(bounded)
        return self[bounded]


class Registry:
    """All metrics of the catalogue in their own registry, by kind and name."""

    def __init__(self, *, vocabulary: Vocabulary) -> None:
        self.collected = CollectorRegistry()
        self.counters: dict[str, SeriesFamily[Count]] = {}
        self.gauges: dict[str, SeriesFamily[Gauge]] = {}
        self.histograms: dict[str, SeriesFamily[Histogram]] = {}
        self._vocabulary = vocabulary
        self._counts: list[Count] = []
        for metric in CATALOGUE.values():
            self._add(metric)

    def flush(self) -> None:
        """Pass the counts since the last flush to the library."""
        for series in self._counts:
            series.flush()

    def _add(self, metric: Metric) -> None:
        name, meaning, labels, collected = metric.name, metric.meaning, metric.labels, self.collected
        make_family = partial(SeriesFamily, labels=tuple(labels), vocabulary=self._vocabulary)
        if metric.kind == "counter":
            counter = Counter(name, meaning, labels, registry=collected)
            self.counters[name] = make_family(make=lambda values: self._count(_choose_series(counter, values)))
        elif metric.kind == "gauge":
            gauge = Gauge(name, meaning, labels, registry=collected, multiprocess_mode=metric.merged)
            self.gauges[name] = make_family(make=partial(_choose_series, gauge))
        else:
            histogram = Histogram(name, meaning, labels, registry=collected, buckets=metric.buckets)
            self.histograms[name] = make_family(make=partial(_choose_series, histogram))

    def _count(self, counter: Counter) -> Count:
        series = Count(counter)
        self._counts.append(series)
        return series


def _choose_series(metric: MetricT, values: tuple[str, ...]) -> MetricT:
    return metric.labels(*values) if values else metric
