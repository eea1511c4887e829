from reasond_server.errors.model import ModelFailedError
from reasond_server.reasoning.run_tools import decode_result, encode_result
from reasond_server.types import ToolResult


def test_the_result_of_a_tool_is_read_as_it_was_written() -> None:
    result = ToolResult(call_id="c", result_json="[1]", is_error=True)
    assert decode_result(encode_result(result)) == result
    error = decode_result(encode_result(ModelFailedError("no")))
    assert isinstance(error, ModelFailedError)
