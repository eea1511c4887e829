"""What a person can begin from the console: questions, turns and repairs; what is written meanwhile; the prompts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from reasond_server.testing import FunctionModel, Reply, running_server
from tests.console.scripted_server import HOSTILE, REPAIR, TURN, begin, call
from tests.console.showing import examine, show, show_run, watched_page

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from reasond_server.base.addresses import Listening
    from tests.console.scripted_server import Script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

HISTORY = [{"role": "user", "text": "What is 15% of 240?"}, {"role": "assistant", "text": "36"}]
PIXEL = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"


async def test_the_prompts_of_a_run_are_shown_with_what_came_back(browser: Browser, scripted: Listening) -> None:
    result = await call(
        scripted, "reasoning.execute", query="How much paint?", strategy="self_consistency", system="Count well."
    )
    usage = result["metrics"]["usage"]
    async with watched_page(browser, scripted) as page:
        await show_run(page, scripted, result["execution_id"])
        await page.get_by_role("tab", name="Prompts").click()
        calls = page.get_by_role("listbox", name="Model calls")
        await expect(calls.get_by_role("option")).to_have_count(usage["model_calls"])
        await calls.focus()
        await page.keyboard.press("End")
        await expect(page.get_by_role("heading", name=f"Call {usage['model_calls']}")).to_be_visible()
        await expect(page.get_by_label("Text", exact=True)).to_contain_text("I count the posts.")
        await expect(page.get_by_label("1. system")).to_contain_text("Count well.")
        await expect(page.get_by_label("2. user")).to_contain_text("How much paint?")
        await expect(page.get_by_text("0 %", exact=True)).to_be_visible()
        await examine(page, "prompts")


async def test_where_no_prompt_is_kept_the_page_says_which_key_keeps_them(browser: Browser) -> None:
    async with running_server() as bare, watched_page(browser, bare) as page:
        result = await call(bare, "reasoning.execute", query="What is 15% of 240?", strategy="direct")
        await show_run(page, bare, result["execution_id"])
        await page.get_by_role("tab", name="Prompts").click()
        await expect(page.get_by_text("[store] record_prompts = true")).to_be_visible()


async def test_a_hostile_prompt_stays_text(browser: Browser, scripted: Listening) -> None:
    result = await call(scripted, "reasoning.execute", query=f"Be hostile. {HOSTILE}", strategy="chain_of_thought")
    async with watched_page(browser, scripted) as page:
        await show_run(page, scripted, result["execution_id"])
        await page.get_by_role("tab", name="Prompts").click()
        await expect(page.get_by_label("Text", exact=True)).to_contain_text("<script>")
        assert await page.locator("#app img, #app script, #app iframe").count() == 0
        assert await page.evaluate("window.wasRun") is None


async def test_the_text_that_is_being_written_is_large_and_a_stopped_run_keeps_it(
    browser: Browser, scripted: Listening, script: Script
) -> None:
    script.release.clear()
    async with watched_page(browser, scripted) as page:
        await show(page, scripted, "ask")
        await page.get_by_label("Question").fill("Please hold this.")
        await page.get_by_label("Strategy").select_option("chain_of_thought")
        await page.get_by_role("button", name="Ask").click()
        writing = page.locator(".writing p")
        await expect(writing).to_be_visible()
        size = await writing.evaluate("node => parseFloat(getComputedStyle(node).fontSize)")
        assert size >= 1.5 * 15
        # There is no step to replay yet, and no call that has ended.
        await expect(page.get_by_text("No step yet")).to_be_visible()
        await expect(page.get_by_role("slider")).to_have_count(0)
        await page.get_by_role("tab", name="Prompts").click()
        await expect(page.get_by_text("No model call has ended yet")).to_be_visible()
        await examine(page, "")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".title .badge")).to_have_text("■ cancelled")
        await expect(page.get_by_label("Written until then")).to_contain_text("First half")
        await expect(writing).to_have_count(0)


async def test_what_the_model_writes_now_stands_there_until_its_step_comes(browser: Browser) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    replies = iter(
        (
            Reply(pieces=("1. Count the posts.",), hold=first, hold_after=0),
            Reply(pieces=("Twelve posts, ", "so 42. <answer>42</answer>"), hold=second, hold_after=1),
        )
    )
    model = FunctionModel(lambda _: next(replies), name="slow")
    async with running_server(model=model) as slow, watched_page(browser, slow) as page:
        execution_id = await begin(slow, query="How many posts?", strategy="plan_and_solve")
        await page.goto(f"{slow.console}#/run/{execution_id}")
        writing = page.locator(".writing p")
        await expect(writing).to_have_text("At work …")
        first.set()
        await expect(writing).to_have_text("Twelve posts, ")
        second.set()
        await expect(page.get_by_label("Answer").first).to_have_text("42")
        await expect(writing).to_have_count(0)


async def test_a_question_takes_instructions_a_schema_and_a_text_from_a_file_and_is_run_again_with_a_change(
    browser: Browser, demo: Listening, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("The fence has 12 posts.", "utf-8")
    async with watched_page(browser, demo) as page:
        await show(page, demo, "ask")
        await page.get_by_label("Question").fill("What is 15% of 240?")
        await page.get_by_label("Strategy").select_option("chain_of_thought")
        await page.get_by_label("from a file").set_input_files(tmp_path / "note.txt")
        await expect(page.get_by_label("Text that it is about")).to_have_value("The fence has 12 posts.")
        await page.get_by_text("Instructions, form of the answer, images").click()
        await page.get_by_label("Instructions, as a system message").fill("Be short.")
        await page.get_by_label("JSON Schema of the answer").fill("{")
        await page.get_by_role("button", name="Ask").click()
        await expect(page.get_by_role("alert").filter(has_text="The schema is no JSON")).to_be_visible()
        await page.get_by_label("JSON Schema of the answer").fill('{"type": "integer"}')
        await page.get_by_role("button", name="Ask").click()
        await expect(page.get_by_role("heading", name="chain_of_thought")).to_be_visible()
        first = page.url.rpartition("/")[2]
        await page.get_by_role("link", name="Change and run again").click()
        await expect(page.get_by_label("Instructions, as a system message")).to_have_value("Be short.")
        await page.get_by_label("Instructions, as a system message").fill("Be very short.")
        await page.get_by_role("button", name="Ask").click()
        await expect(page.get_by_role("heading", name="chain_of_thought")).to_be_visible()
        second = page.url.rpartition("/")[2]
        again = await call(
            demo, "reasoning.execute", query="And of 80?", history=HISTORY, budget={"max_tool_calls": 3}, stop=["STOP"]
        )
        await show(page, demo, f"ask/{again['execution_id']}")
        await page.get_by_role("button", name="Ask").click()
        await expect(page.locator(".title .badge")).to_be_visible()
        third = page.url.rpartition("/")[2]
    tasks = [(await call(demo, "executions.get", execution_id=each))["task"] for each in (first, second, third)]
    # What the form has no field for is asked again as it was.
    kept = tasks.pop()
    assert (kept["history"], kept["stop"], kept["budget"]["max_tool_calls"]) == (HISTORY, ["STOP"], 3)
    assert [each["system"] for each in tasks] == ["Be short.", "Be very short."]
    assert [each["material"] for each in tasks] == ["The fence has 12 posts."] * 2
    assert [each["answer_schema"] for each in tasks] == [{"type": "integer"}] * 2


async def test_an_image_goes_with_the_question_and_a_model_without_eyes_says_so(
    browser: Browser, demo: Listening, tmp_path: Path
) -> None:
    (tmp_path / "dot.gif").write_bytes(PIXEL)
    async with watched_page(browser, demo) as page:
        await show(page, demo, "ask")
        await page.get_by_label("Question").fill("What is this?")
        await page.get_by_text("Instructions, form of the answer, images").click()
        await page.get_by_label("Images, if the model takes any").set_input_files(tmp_path / "dot.gif")
        await page.get_by_role("button", name="Ask").click()
        await expect(page.get_by_role("alert").filter(has_text="images")).to_be_visible()
        # The form is there to be changed.
        await expect(page.get_by_role("button", name="Ask")).to_be_enabled()


async def test_a_turn_is_begun_in_a_session_with_the_keyboard_alone(browser: Browser, demo: Listening) -> None:
    async with watched_page(browser, demo) as page:
        await show(page, demo, "ask_turn")
        await expect(page.get_by_role("button", name="Begin a turn")).to_be_visible()
        await examine(page, "ask_turn")
        for label, text in (("Message", TURN["message"]), ("Session", "keys")):
            await _tab_to(page, label)
            await page.keyboard.type(text)
        await _tab_to(page, "Instructions, form")
        await page.keyboard.press("Enter")
        await _tab_to(page, "Tools of the client")
        await page.keyboard.insert_text('[{"name": "book_title", "description": "Reads the title of the book."}]')
        await _tab_to(page, "Begin a turn")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Waits for its client")).to_be_visible()
        await page.get_by_role("link", name="Change and run again").click()
        await expect(page.get_by_role("textbox", name="Message", exact=True)).to_have_value(TURN["message"])
        await expect(page.locator("[name=session_id]")).to_have_value("keys")
    (turn,) = (await call(demo, "turns.list", session_id="keys"))["turns"]
    assert turn["state"] == "awaiting_client"


async def test_a_repair_is_begun_with_a_folder_and_again_with_its_snapshot(
    browser: Browser, demo: Listening, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    (folder / "node_modules").mkdir(parents=True)
    (folder / "node_modules" / "large.js").write_text("x" * 100, "utf-8")
    for each in REPAIR["files"]:
        (folder / each["path"]).write_text(each["content"], "utf-8")
    check, held_out = (each["argv"] for each in REPAIR["checks"])
    async with watched_page(browser, demo) as page:
        await show(page, demo, "ask_repair")
        await expect(page.get_by_role("button", name="Begin a repair")).to_be_visible()
        await page.get_by_label("What is wrong").fill(REPAIR["description"])
        await page.get_by_label("Folder of the code").set_input_files(folder)
        await page.get_by_role("button", name="Another check").click()
        for place, (argv, role) in enumerate(((check, "reproduce"), (held_out, "held_out"))):
            await page.get_by_label("Command").nth(place).fill(f'{argv[0]} {argv[1]} "{argv[2]}"')
            await page.get_by_label("Meaning").nth(place).select_option(role)
            await page.get_by_label("It reports by").nth(place).select_option("exit_code")
        await examine(page, "ask_repair")
        await page.locator("select[name=search]").select_option("best_of_n")
        await page.get_by_role("button", name="Begin a repair").click()
        await expect(page.get_by_role("heading", name="The patch was accepted")).to_be_visible()
        await page.get_by_role("link", name="Change and run again").click()
        # The code is on the server: no folder must be chosen.
        await expect(page.get_by_text("Without a choice, the code of the repair before.")).to_be_visible()
        # Nothing is asked for again, and what the form does not show is as it was.
        await expect(page.get_by_label("What is wrong")).to_have_value(REPAIR["description"])
        await expect(page.locator("select[name=search]")).to_have_value("best_of_n")
        await expect(page.get_by_label("Command").nth(1)).to_have_value(f'{held_out[0]} {held_out[1]} "{held_out[2]}"')
        await page.get_by_label("What is wrong").fill("larger is wrong")
        first = page.url.rpartition("/")[2]
        await page.get_by_role("button", name="Begin a repair").click()
        await expect(page.get_by_role("heading", name="The patch was accepted")).to_be_visible()
        second = page.url.rpartition("/")[2]
    before, again = [(await call(demo, "repair.get", execution_id=each))["task"] for each in (first, second)]
    assert again == before | {"description": "larger is wrong"}


async def _tab_to(page: Page, label: str) -> None:
    """Press Tab until the focus is on what has this label."""
    name = "(node => node.labels?.[0]?.innerText ?? node.innerText ?? '')(document.activeElement)"
    for _ in range(60):
        await page.keyboard.press("Tab")
        if str(await page.evaluate(name)).strip().startswith(label):
            return
    raise AssertionError(f"no Tab leads to {label}")
