"""Marks of reasoning and control tokens in the text of answers, however the text is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.dialects.reasoning_marks import (
    FIELDS,
    LONE_CLOSE,
    MarkReader,
    may_leave_open,
    read_content,
    read_fields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECES = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<thi",
            "nk>",
            "</",
            "think>",
            "\n",
            " ",
            "a",
            "<",
            "`",
            "[THINK]",
            "[/THINK]",
            "<|im_end|>",
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "analysis",
            "A",
            "assistantfinal",
            "```\n",
            "<|im_start|>user",
        ]
    ),
    max_size=10,
)
READ = {
    "plain": ("", "plain"),
    "<think>so</think>\n\nHello": ("so", "Hello"),
    "<thinking>so</thinking>Hello": ("so", "Hello"),
    "<thinking>so</think>Hello": ("so", "Hello"),
    "[THINK]so[/THINK]Hello": ("so", "Hello"),
    "<thought>so</thought>\nHello": ("so", "Hello"),
    "\u25c1think\u25b7so\u25c1/think\u25b7Hello": ("so", "Hello"),
    "<|START_THINKING|>so<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>": ("so", "Hello"),
    "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>": (
        "so",
        "Hello",
    ),
    "analysisSo it is.assistantfinalHello": ("So it is.", "Hello"),
    "analysis of it": ("", "analysis of it"),
    "Hello. <think>x</think>you": ("x", "Hello. you"),
    "<think>so": ("so", ""),
    "<think></think>Hello": ("", "Hello"),
    "<think>a</thi": ("a</thi", ""),
    "<thi": ("", "<thi"),
    "<thinker>": ("", "<thinker>"),
    "Hello<|im_end|>": ("", "Hello"),
    "<|im_start|>assistant\nHello</s>": ("", "Hello"),
    "The token <|im_end|> ends it.": ("", "The token <|im_end|> ends it."),
    "Use the <think> tag, or `</think>`.": ("", "Use the <think> tag, or `</think>`."),
    "```\n<think>x</think>\n```\n": ("", "```\n<think>x</think>\n```\n"),
    "It is <reasoning>x</reasoning>.": ("", "It is <reasoning>x</reasoning>."),
    "perhaps</think>Hello": ("", f"perhaps{LONE_CLOSE}Hello"),
    "perhaps[/THINK]Hello": ("", f"perhaps{LONE_CLOSE}Hello"),
    "": ("", ""),
}


def read(pieces: Sequence[str]) -> tuple[str, str]:
    """Return the reasoning and the answer."""
    reader = MarkReader()
    found = [one for piece in pieces for one in reader.feed(piece)] + reader.flush()
    return "".join(one.text for one in found if one.is_reasoning), "".join(
        one.text for one in found if not one.is_reasoning
    )


@pytest.mark.parametrize("content", READ)
def test_marks_part_reasoning_from_the_answer(content: str) -> None:
    assert read([content]) == READ[content]


@given(PIECES)
def test_any_cut_of_a_content_is_read_alike(pieces: list[str]) -> None:
    whole = "".join(pieces)
    assert read(pieces) == read([whole]) == read(list(whole))


def test_the_message_of_another_speaker_is_dropped_and_told() -> None:
    reader = MarkReader()
    found = [*reader.feed("Hello<|im_end|>\n<|im_start|>user\nAnd more?"), *reader.feed(" More."), *reader.flush()]
    assert "".join(piece.text for piece in found).strip() == "Hello"
    assert reader.has_invented


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning": "so"},
        {"reasoning_content": "so"},
        {"reasoning": None, "reasoning_details": [{"type": "reasoning.text", "text": "so"}]},
        {
            "reasoning_details": [
                {"type": "reasoning.encrypted", "data": "x"},
                {"type": "reasoning.summary", "summary": "so"},
            ]
        },
        {"thinking_blocks": [{"type": "thinking", "thinking": "so", "signature": "x"}]},
        {"thinking": {"content": "so"}},
        {"reasoning_content": [{"type": "text", "text": "s"}, {"type": "text", "text": "o"}]},
    ],
)
def test_reasoning_is_read_from_the_members_of_many_gateways(message: dict[str, Any]) -> None:
    assert read_fields(message, FIELDS) == "so"


@pytest.mark.parametrize(
    ("content", "reasoning", "answer"),
    [
        ("Hello", "", "Hello"),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}, {"type": "text", "text": "Hello"}],
            "so",
            "Hello",
        ),
        ([{"type": "reasoning", "summary": [{"text": "so"}]}, {"type": "output_text", "text": "Hello"}], "so", "Hello"),
        ([{"text": "so", "thought": True}, {"text": "Hello"}], "so", "Hello"),
        (["Hel", {"type": "text", "text": {"value": "lo"}}], "", "Hello"),
        ({"type": "text", "text": "Hello"}, "", "Hello"),
        ([{"type": "image_url"}, 7, None], "", ""),
    ],
)
def test_a_content_of_parts_is_read_whole(content: object, reasoning: str, answer: str) -> None:
    pieces = list(read_content(content))
    assert "".join(one.text for one in pieces if one.is_reasoning) == reasoning
    assert "".join(one.text for one in pieces if not one.is_reasoning) == answer


@pytest.mark.parametrize(
    "model",
    [
        *("deepseek-r1-distill-llama-70b", "deepseek-ai/DeepSeek-V3.1", "QwQ-32B", "Qwen/Qwen3-4B-Thinking-2507"),
        *(
            "zai-org/GLM-4.6",
            "MiniMaxAI/MiniMax-M2",
            "moonshotai/Kimi-K2-Thinking",
            "deepseek-reasoner",
            "EXAONE-Deep-7B",
        ),
    ],
)
def test_models_whose_prompt_opens_their_reasoning_are_known_by_name(model: str) -> None:
    assert may_leave_open(model)


@pytest.mark.parametrize(
    "model", ["gpt-4o-mini", "llama-3.1-8b", "r10-chat", "rethink-7b", "qwen2.5-7b-instruct", "demo"]
)
def test_other_models_are_not(model: str) -> None:
    assert not may_leave_open(model)
