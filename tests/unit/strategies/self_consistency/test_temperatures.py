from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.strategies.self_consistency.temperatures import ladder


@given(temperature=st.floats(0.001, 2.0), samples=st.integers(1, 40))
def test_the_ladder_stays_near_its_middle_and_is_never_greedy(temperature: float, samples: int) -> None:
    rungs = ladder(temperature, samples)
    assert len(rungs) == samples
    assert rungs[0] == pytest.approx(temperature, abs=1e-4)
    assert all(min(0.05, temperature) - 1e-4 <= rung <= 2.0 for rung in rungs)
    assert all(abs(rung - temperature) <= max(0.3 * temperature, 0.05) + 1e-4 for rung in rungs)
    if samples > 1 and temperature > 0.2:
        assert len(set(rungs)) > 1
