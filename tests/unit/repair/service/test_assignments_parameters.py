"""The parameters of a repair: which requests are refused, and what applies."""

from __future__ import annotations

import json

import pytest

from reasond_server.config.repairs import RepairSettings
from reasond_server.errors.request import InvalidConfigError
from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
from reasond_server.repair.service.assignments import describe_parameters, read_parameters, resolve_parameters
from reasond_server.types.repairs import RepairSearch

POLICY = RepairPolicy(max_allowed_num_candidates=6, max_allowed_candidates=100)


def test_a_request_without_parameters_gets_those_of_the_server() -> None:
    assert resolve_parameters({}, POLICY) == RepairParameters()


def test_parameters_of_the_request_win_over_those_of_the_server() -> None:
    found = resolve_parameters({"search": "lats", "num_candidates": 6, "temperature": 1, "seed": 7}, POLICY)
    assert found.search is RepairSearch.LATS
    assert (found.num_candidates, found.temperature, found.seed) == (6, 1.0, 7)
    assert isinstance(found.temperature, float)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_candidates", 7, "at most 6, which the operator allows, got 7"),
        ("num_candidates", 0, "at least 1, got 0"),
        ("num_candidates", 1.5, "a whole number, got 1.5"),
        ("num_candidates", True, "a whole number"),
        ("max_candidates", 101, "at most 100"),
        ("max_candidates", 10**400, "at most 1000, got 1000"),
        ("max_check_cpu_s", 10**400, "must be"),
        ("critique_threshold", 101, "at most 100, got 101"),
        ("temperature", float("nan"), "a finite number"),
        ("top_p", 0, "greater than 0, got 0"),
        ("search", "beam", "one of 'refine_beam', 'lats', 'greedy', 'best_of_n' or 'tournament', got 'beam'"),
        ("allow_tool_use", 1, "true or false, got 1"),
        ("deduplication_similarity", 0.95, "more than 95 % similar to the fault"),
        ("num_candidate", 3, "no parameter of a repair; did you mean 'num_candidates'?"),
    ],
)
def test_a_bad_parameter_is_named_with_its_bounds(name: str, value: object, words: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        resolve_parameters({name: value}, POLICY)
    violation = caught.value.violations[0]
    assert violation.field == f"config.{name}"
    assert words in violation.description


def test_every_bad_parameter_is_named_at_once() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        resolve_parameters({"patience": 0, "beam_width": 11, "typo": 1}, POLICY)
    assert [each.field for each in caught.value.violations] == ["config.patience", "config.beam_width", "config.typo"]


def test_parameters_survive_being_stored() -> None:
    parameters = RepairParameters(search=RepairSearch.GREEDY, seed=3, max_check_cpu_s=1.5)
    assert read_parameters(json.loads(json.dumps(describe_parameters(parameters)))) == parameters


def test_the_defaults_of_the_settings_are_those_of_the_seed() -> None:
    defaults = RepairSettings().defaults
    assert defaults == RepairParameters()
    assert (defaults.max_reflection_depth, defaults.num_candidates, defaults.critique_threshold) == (3, 5, 85.0)
    assert (defaults.temperature, defaults.top_p) == (0.2, 0.9)
    assert (defaults.critic_timeout_ms, defaults.max_candidates, defaults.enable_early_terminate) == (2000, 25, True)
    # That of the seed, 5, would cost a weak model a third of its repairs (decision 0046).
    assert defaults.min_improvement_delta == 0.0
