"""Every row of the corpus is read rightly by a running server; rows that are not yet say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reports.rows import load_rows
from tests.reports.site import running_site
from tests.reports.trials import try_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.reports.rows import Row
    from tests.reports.site import Runner


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with running_site() as running:
        yield running


ROWS = [
    pytest.param(row, id=row.id, marks=[pytest.mark.xfail(reason=row.red, strict=True)] if row.red else [])
    for row in load_rows()
]


@pytest.mark.parametrize("row", ROWS)
def test_a_report_is_read_rightly(row: Row, runner: Runner) -> None:
    assert runner.run(try_row(runner.site, row)) == []
