import pytest

from reasond_server.errors import ModelFailedError, ModelUnavailableError, ReasondError, StoreUnavailableError
from reasond_server.executions.endings import ending_of_error
from reasond_server.types import Usage


@pytest.mark.parametrize("error", [ModelUnavailableError("gone"), StoreUnavailableError("gone")])
def test_what_fails_after_tokens_were_spent_does_not_ask_to_be_retried(error: ReasondError) -> None:
    assert ending_of_error(error, usage=Usage()).error is error
    failure = ending_of_error(error, usage=Usage(input_tokens=1, model_calls=1)).error
    assert isinstance(failure, ModelFailedError)
    assert error.reason in failure.message
