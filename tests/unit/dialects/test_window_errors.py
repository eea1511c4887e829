"""The windows that model servers tell when a prompt does not fit."""

from __future__ import annotations

import pytest

from reasond_server.dialects.window_errors import TooLong, is_starved, read_too_long

TOLD = [
    # openai, vllm-project/vllm#20409, AIDotNet/OpenCowork#82
    ("This model's maximum context length is 4097 tokens. However, you requested 4226 tokens", 4097, 0),
    ("This endpoint's maximum context length is 32,768 tokens. However, you requested about 40000", 32_768, 0),
    ("This model's maximum context length is 131072 tokens. However, you requested 128000 output tokens", 131_072, 0),
    (
        "You passed 5001 input tokens and requested 9 output tokens. However, the model's context length is only 4096",
        4096,
        0,
    ),
    # QwenLM/Qwen3#1321, sgl-project/sglang#4048
    ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", 40_960, 61_709),
    ("Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).", 59_862, 160_062),
    # whoz-oss/coday#26, docker/docker-agent#569
    ("prompt is too long: 207791 tokens > 200000 maximum", 200_000, 207_791),
    ("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input", 200_000, 178_959),
    # google-gemini/gemini-cli#6678, google-gemini/gemini-cli#22609
    ("The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).", 1_048_576, 1_200_293),
    ("The input token count exceeds the maximum number of tokens allowed 1048576", 1_048_576, 0),
    # cline/cline#3120, MoonshotAI/MoonshotAI-Cookbook#18
    ("This model's maximum prompt length is 131072 but the request contains 136973 tokens.", 131_072, 136_973),
    ("model max length exceeded, max length:8192", 8192, 0),
    ("Invalid request: Your request exceeded model token limit: 8192", 8192, 0),
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32_768,
        0,
    ),
    ("Requested tokens (3085) exceed context window of 2048", 2048, 3085),
    ("Range of input length should be [1, 30720]", 30_720, 0),
    # NousResearch/hermes-agent#53359: a gateway quotes the whole report of llama.cpp
    ('{"error":{"code":400,"message":"too long","n_prompt_tokens":18995,"n_ctx":4096}}', 4096, 18_995),
]


@pytest.mark.parametrize(("message", "window", "prompt"), TOLD)
def test_the_window_that_a_server_tells_is_read(message: str, window: int, prompt: int) -> None:
    assert read_too_long({"message": message}) == TooLong(window=window, prompt=prompt)


def test_the_numbers_of_llama_cpp_are_members_of_its_error() -> None:
    report = {"message": "the request exceeds the available context size", "n_prompt_tokens": 1407, "n_ctx": 256}
    assert read_too_long(report) == TooLong(window=256, prompt=1407)


@pytest.mark.parametrize(
    "message", ["Prompt exceeds max length", "Input is too long for requested model.", "too many tokens"]
)
def test_a_refusal_without_a_number_is_still_one_of_a_prompt_that_is_too_long(message: str) -> None:
    assert read_too_long({"message": message}) == TooLong()


@pytest.mark.parametrize(
    "message",
    [
        # A limit of tokens by the minute is no window.
        "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000",
        "max_tokens is too large: 90000. This model supports at most 16384 completion tokens",
        "temperature must be between 0 and 2",
        "The parameter of 4096 tokens is unknown",
    ],
)
def test_other_refusals_tell_no_window(message: str) -> None:
    assert read_too_long({"message": message}) is None


def test_an_answer_that_reasoning_took_the_tokens_of_is_told_from_a_prompt_that_is_too_long() -> None:
    told = "Could not finish the message because max_tokens or model output limit was reached. Please try again."
    assert is_starved({"message": told})
    assert read_too_long({"message": told}) is None
    assert not is_starved({"message": "maximum context length is 4096 tokens"})
    assert not is_starved({"message": None})


@pytest.mark.parametrize("number", ["0", "12", "9" * 12])
def test_a_number_that_can_be_no_window_is_left_unread(number: str) -> None:
    assert read_too_long({"message": f"maximum context length is {number} tokens"}) == TooLong()
