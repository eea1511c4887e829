import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.model import ModelFailedError, ModelTimeoutError, ModelUnavailableError
from reasond_server.llm.model import CALLERS_TIME
from reasond_server.runs.work import build_error_ending
from reasond_server.types import FinishReason, Usage


@pytest.mark.parametrize("error", [ModelUnavailableError("gone"), StoreUnavailableError("gone")])
def test_what_fails_after_tokens_were_spent_does_not_ask_to_be_retried(error: ReasondError) -> None:
    assert build_error_ending(error, usage=Usage()).error is error
    failure = build_error_ending(error, usage=Usage(input_tokens=1, model_calls=1)).error
    assert isinstance(failure, ModelFailedError)
    assert error.reason in failure.message


def test_a_call_that_the_callers_time_ended_is_no_failure_once_something_was_spent() -> None:
    error = ModelTimeoutError("too late", metadata={"limit": CALLERS_TIME})
    assert build_error_ending(error, usage=Usage()).error is error
    ending = build_error_ending(error, usage=Usage(input_tokens=1, model_calls=1))
    assert (ending.error, ending.finish_reason) == (None, FinishReason.BUDGET_EXHAUSTED)
    assert ending.warnings == (error.full_message,)
    of_the_backend = ModelTimeoutError("too late", metadata={"limit": "timeouts.first_token_s"})
    assert build_error_ending(of_the_backend, usage=Usage(input_tokens=1, model_calls=1)).error is not None
