from __future__ import annotations

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.tools.tool import NO_TOOLS
from reasond_server.types import ToolCall, ToolResult


async def test_a_run_without_tools_has_none_and_calls_none() -> None:
    box = NO_TOOLS.open_toolbox(max_calls=None)
    assert box.specs == ()
    assert not box.is_idempotent("calculator")
    call = ToolCall(call_id="c1", name="calculator", arguments_json="{}")
    box.restore(call, ToolResult(call_id="c1", result_json="{}"))
    with pytest.raises(InternalError, match="its strategy called 'calculator'"):
        await box.call(call)
