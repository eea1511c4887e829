"""The console in a real Chromium, over real servers: each screen, and what happens to them."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from reasond_server.access.permissions import ADMIN
from reasond_server.access.tokens import TokenMinter
from reasond_server.assembly.app import Server
from reasond_server.cli.commands.demo import FILE, QUESTION
from reasond_server.config import load
from reasond_server.testing import running_server
from tests.browsing import LIMIT_MS, new_page
from tests.conftest import PROGRAMS as SEARCH_PATH
from tests.console.scripted_server import HOSTILE, MANY, REPAIR, TURN, Script, begin, call, cutting_proxy
from tests.console.showing import KEY, WIDTH, examine, link_to, show, show_run, watched_page

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

    from reasond_server.base.addresses import Listening

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


async def test_a_book_read_window_by_window_shows_every_window_and_signed_savings(
    browser: Browser, demo: Listening
) -> None:
    book = resources.files("reasond_server").joinpath(FILE).read_text("utf-8")
    config = {"chunk_size": 2048, "carryover_size": 512}
    result = await call(
        demo,
        "reasoning.execute",
        query=QUESTION,
        material=book,
        strategy="bounded_context",
        strategy_config=config,
    )
    specific = result["metrics"]["strategy_specific"]
    async with watched_page(browser, demo) as page:
        assert "token" not in page.url
        await show_run(page, demo, result["execution_id"])
        await expect(page.locator(".badge.good")).to_have_text("✓ answered")
        await expect(page.get_by_label("Answer").first).to_contain_text("serene and quiet Air")
        windows = page.get_by_role("listbox", name="Windows")
        await expect(windows.get_by_role("option").first).to_have_attribute(
            "aria-setsize", str(specific["total_iterations"])
        )
        told = await windows.get_by_role("img").nth(1).get_attribute("aria-label") or ""
        used, size, read, notes, written = (int(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", told))
        assert (used, size) == (specific["iterations"][1]["tokens"], 2048)
        assert notes > 0
        assert used == read + notes + written
        savings = specific["savings"]
        assert savings["attention_pct"] > 0 > savings["tokens_pct"]
        await expect(page.get_by_text(f"▼ {savings['attention_pct']} % saved").first).to_be_visible()
        await expect(page.get_by_text(f"▲ {-savings['tokens_pct']} % more").first).to_be_visible()
        await examine(page, "windows", height=915)
        for _ in range(4):
            await page.get_by_role("slider").press("PageDown")
        await expect(windows.get_by_role("option").first).not_to_have_attribute(
            "aria-setsize", str(specific["total_iterations"])
        )
        await examine(page, "replay", height=620)
        await page.get_by_role("button", name="Show the end").click()
        await page.set_viewport_size({"width": 340, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        await page.set_viewport_size({"width": WIDTH, "height": 800})
        await windows.focus()
        await page.keyboard.press("End")
        await expect(page.get_by_role("heading", name="reason", exact=False).last).to_contain_text("Step 58")
        await page.get_by_role("tab", name="Raw events").click()
        await expect(page.get_by_label("The event as JSON")).to_contain_text('"chunk_size": 2048')
        await examine(page, "events", height=620)
        await page.get_by_role("tab", name="Same call elsewhere").click()
        await expect(page.get_by_label("grpcurl", exact=True).first).to_contain_text('"custom":{"chunk_size":2048')
        await expect(page.get_by_label("openai (Python)", exact=True)).to_contain_text("reasond/bounded_context")
        await examine(page, "elsewhere", height=620)


async def test_replay_shows_what_was_there_at_a_time(browser: Browser, demo: Listening) -> None:
    result = await call(demo, "reasoning.execute", query="What is 15% of 240?", strategy="best_of_n")
    async with watched_page(browser, demo, is_dark=True) as page:
        await show_run(page, demo, result["execution_id"])
        steps = page.get_by_role("listbox", name="Steps").get_by_role("option")
        await expect(steps).to_have_count(5)
        slider = page.get_by_role("slider")
        await slider.focus()
        await page.keyboard.press("Home")
        await expect(steps).to_have_count(0)
        assert (await slider.get_attribute("aria-valuetext") or "").startswith("0 ms of ")
        await page.keyboard.press("End")
        await expect(steps).to_have_count(5)
        await page.get_by_role("button", name="Show the end").click()
        await expect(page.get_by_text("Votes: 5 samples with an answer")).to_be_visible()
        await page.get_by_role("button", name="Replay").click()
        await page.get_by_role("button", name="Pause").click()
        await page.get_by_role("button", name="Show the end").click()
        await expect(steps).to_have_count(5)


async def test_a_tree_and_votes_are_pictures_with_words(browser: Browser, scripted: Listening) -> None:
    tree = await call(scripted, "reasoning.execute", query="How much paint?", strategy="tree_of_thought")
    votes = await call(scripted, "reasoning.execute", query="How much paint?", strategy="self_consistency")
    async with watched_page(browser, scripted) as page:
        await show_run(page, scripted, tree["execution_id"])
        await expect(page.get_by_role("region", name="Tree of thoughts")).to_be_visible()
        await page.locator(".tree g circle").nth(1).click()
        await expect(page.get_by_role("heading", name="Step 2", exact=False)).to_be_visible()
        await examine(page, "tree")
        await show_run(page, scripted, votes["execution_id"])
        await expect(page.get_by_text("12 litres").first).to_be_visible()
        await examine(page, "votes")
        await show(page, scripted, f"compare/{tree['execution_id']}/{votes['execution_id']}")
        await expect(page.get_by_role("row", name="Model calls")).to_contain_text("%")
        await expect(page.get_by_label("Asked", exact=True)).to_have_text("How much paint?")
        # What neither run has, such as a price, takes no line.
        await expect(page.get_by_role("row", name="Cost")).to_have_count(0)
        await examine(page, "compare", height=620)
        await show(page, scripted, "")
        await page.get_by_label("Strategy").select_option("self_consistency")
        await expect(link_to(page, votes["execution_id"])).to_be_visible()
        await expect(link_to(page, tree["execution_id"])).to_have_count(0)
        await page.get_by_label("Strategy").select_option("")
        for each in (tree, votes):
            await page.get_by_label(f"compare {each['execution_id']}").check()
        await expect(page.get_by_role("link", name="Compare these two")).to_be_visible()
        await examine(page, "runs", height=340)


async def test_a_turn_that_waits_for_its_client_is_settled_here(browser: Browser, demo: Listening) -> None:
    turn = (await call(demo, "turns.start", **TURN))["turn"]
    async with watched_page(browser, demo) as page:
        await show(page, demo, "turns")
        await expect(link_to(page, turn["turn_id"])).to_be_visible()
        await examine(page, "turns", height=340)
        await link_to(page, turn["turn_id"]).click()
        await expect(page.get_by_role("heading", name="Waits for its client")).to_be_visible()
        await expect(page.get_by_role("row", name="book_title")).to_contain_text("handed off")
        await examine(page, "turn")
        await page.get_by_label("Result as JSON").fill('"Opticks"')
        await page.get_by_role("button", name="Settle this call").click()
        await expect(page.get_by_text("May the server call")).to_be_visible()
        await page.get_by_label("approve", exact=True).check()
        await page.get_by_role("button", name="Settle this call").click()
        await expect(page.locator(".title .badge.good")).to_have_text("✓ answered")
        await expect(page.get_by_label("Answer")).to_contain_text("Opticks")
        await expect(page.get_by_role("heading", name="Waits for its client")).to_have_count(0)
    told = await call(demo, "turns.get", turn_id=turn["turn_id"])
    assert told["turn"]["state"] == "succeeded"


async def test_a_person_reads_what_was_said_before_a_call_and_refuses_it_with_words(
    browser: Browser, demo: Listening
) -> None:
    start = {"message": "Tell the current time.", "system": "You are careful with clocks.", "session_id": "clocks"}
    await call(demo, "turns.start", message="What is 15% of 240?", session_id="clocks")
    turn = (await call(demo, "turns.start", **start))["turn"]
    async with watched_page(browser, demo) as page:
        await show(page, demo, f"run/{turn['turn_id']}")
        await expect(page.get_by_text("May the server call")).to_be_visible()
        said = page.locator("details.said")
        await expect(said.get_by_text("You are careful with clocks.")).to_be_visible()
        await expect(said.locator(".talk .user")).to_contain_text("What is 15% of 240?")
        await expect(said.locator(".talk .assistant")).to_contain_text("36")
        await expect(page.get_by_text("Settle it within")).to_be_visible()
        await page.get_by_label("refuse", exact=True).check()
        await page.get_by_label("Why not").fill("It is none of its business.")
        await page.get_by_role("button", name="Settle this call").click()
        await expect(page.get_by_role("row", name="current_time")).to_contain_text(
            "Refused: It is none of its business."
        )
        await expect(said).not_to_have_attribute("open", "")
    told = await call(demo, "turns.get", turn_id=turn["turn_id"])
    assert told["turn"]["ledger"][0]["refusal"] == "It is none of its business."


async def test_runs_are_found_by_what_was_asked_and_only_an_answer_is_green(
    browser: Browser, scripted: Listening
) -> None:
    answered = await call(scripted, "reasoning.execute", query="How many posts has the fence?")
    cut = await call(scripted, "reasoning.execute", query="Which posts?", budget={"max_output_tokens": 2})
    async with watched_page(browser, scripted) as page:
        await expect(link_to(page, cut["execution_id"])).to_have_text("Which posts?")
        row = page.get_by_role("row").filter(has=link_to(page, answered["execution_id"]))
        await expect(row.locator(".badge.good")).to_have_text("✓ answered")
        await expect(row).to_contain_text("litres")
        await expect(row).to_contain_text("jsonrpc")
        row = page.get_by_role("row").filter(has=link_to(page, cut["execution_id"]))
        await expect(row.locator(".badge")).to_be_visible()
        await expect(row.locator(".badge.good")).to_have_count(0)
        await page.get_by_label("Search").fill("MANY posts")
        await expect(link_to(page, cut["execution_id"])).to_have_count(0)
        await expect(link_to(page, answered["execution_id"])).to_be_visible()
        await page.get_by_label("Search").fill(cut["execution_id"])
        await expect(link_to(page, answered["execution_id"])).to_have_count(0)
        await expect(link_to(page, cut["execution_id"])).to_be_visible()
        await page.get_by_label("Search").fill("nobody asked this")
        await expect(page.get_by_text("Nothing kept fits these filters.")).to_be_visible()


async def test_a_server_without_runs_says_how_to_begin_and_a_run_that_is_not_there_is_not_running(
    browser: Browser,
) -> None:
    async with running_server() as bare, watched_page(browser, bare) as page:
        for address, text, form in (("", "No run yet.", "ask"), ("turns", "No turn yet", "ask_turn")):
            await show(page, bare, address)
            await expect(page.get_by_text(text)).to_be_visible()
            await expect(page.get_by_role("link", name="Begin one")).to_have_attribute("href", f"#/{form}")
            await expect(page.get_by_text("Tick two runs")).to_have_count(0)
            await examine(page, "")
        await show(page, bare, "ask_repair")
        await expect(page.get_by_text("This server runs no checks.")).to_be_visible()
        await show(page, bare, "run/nothing")
        await expect(page.get_by_role("alert").filter(has_text="Execution not found")).to_be_visible()
        await expect(page.locator(".badge, .writing")).to_have_count(0)


async def test_a_repair_shows_its_candidates_their_verdicts_and_the_patch(browser: Browser, demo: Listening) -> None:
    repair = await call(demo, "repair.execute", **REPAIR)
    assert repair["repair"]["is_accepted"]
    async with watched_page(browser, demo) as page:
        await page.get_by_label("Strategy").select_option("repair")
        await link_to(page, repair["repair"]["execution_id"]).click()
        await expect(page.get_by_role("heading", name="The patch was accepted")).to_be_visible()
        await expect(page.get_by_label("Asked")).to_have_text("larger returns the smaller number")
        await expect(page.locator(".beside .added").first).to_have_text("    return max(one, other)")
        await expect(page.locator(".beside .removed").first).to_have_text("    return min(one, other)")
        candidates = page.get_by_role("region", name="Candidates", exact=True)
        # The winner is the first of the table and marked in the tree.
        await expect(candidates.get_by_role("row").nth(1)).to_contain_text("★")
        await expect(page.locator(".tree .node.best")).to_have_count(1)
        await expect(candidates.get_by_text("✕ failed").first).to_be_visible()
        await expect(candidates.get_by_text("✓ passed").first).to_be_visible()
        await examine(page, "repair")
        async with page.expect_download() as downloading:
            await page.get_by_role("button", name="Download").click()
        patch = (await (await downloading.value).path()).read_text("utf-8")
        assert patch == repair["repair"]["patch"]
        await page.get_by_role("button", name="Side by side").first.click()
        await expect(page.locator(".diff .added").first).to_have_text("+    return max(one, other)")


async def test_the_form_is_made_from_the_schema_and_its_call_works_elsewhere(
    browser: Browser, scripted: Listening, grpcurl: str
) -> None:
    assert grpcurl
    async with watched_page(browser, scripted) as page:
        await show(page, scripted, "ask")
        await page.get_by_label("Question").fill("How much paint?")
        await page.get_by_label("Strategy").select_option("tree_of_thought")
        await examine(page, "ask")
        await page.get_by_label("branching").fill("2")
        await page.get_by_label("search").select_option("best_first")
        await page.get_by_label("Most model calls").fill("30")
        await page.get_by_role("button", name="Ask").click()
        await expect(page.get_by_role("heading", name="tree_of_thought")).to_be_visible()
        await expect(page.get_by_text("answered").first).to_be_visible()
        execution_id = page.url.rpartition("/")[2]
        await page.get_by_role("tab", name="Same call elsewhere").click()
        names = ("grpcurl", "curl", "Python", "openai (Python)")
        commands = {name: await page.get_by_label(name, exact=True).first.inner_text() for name in names}
    task = (await call(scripted, "executions.get", execution_id=execution_id))["task"]
    assert task["strategy_config"] == {"branching": 2, "search": "best_first"}
    assert task["budget"]["max_model_calls"] == 30
    for name, text in commands.items():
        assert "12 litres" in await run_command(scripted, text, is_python="Python" in name), name


async def run_command(listening: Listening, text: str, *, is_python: bool) -> str:
    """Return what a command prints that the console shows, in a shell or in Python."""
    environ = {
        **os.environ,
        "PATH": SEARCH_PATH,
        "REASOND_TARGET": listening.grpc,
        "REASOND_TOKEN": listening.token,
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", text] if is_python else ["/bin/sh", "-c", text]
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_a_run_of_every_strategy_has_its_steps_on_the_screen(browser: Browser, demo: Listening) -> None:
    told = await call(demo, "reasoning.list_strategies")
    names = {each["name"] for each in told["strategies"]} - {"program_of_thought"}
    assert len(names) >= 9
    async with watched_page(browser, demo) as page:
        for name in sorted(names):
            result = await call(demo, "reasoning.execute", query="What is 15% of 240?", strategy=name)
            await show_run(page, demo, result["execution_id"])
            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
            # The answer of direct is the whole reply.
            await expect(page.get_by_label("Answer").first).to_have_text(result["answer"])
            assert "36" in result["answer"]
            await expect(page.get_by_role("heading", name="Step 1:")).to_be_visible()


async def test_a_hostile_answer_stays_text(browser: Browser, scripted: Listening) -> None:
    result = await call(scripted, "reasoning.execute", query="Be hostile.", strategy="chain_of_thought")
    async with watched_page(browser, scripted) as page:
        await show_run(page, scripted, result["execution_id"])
        await expect(page.get_by_label("Answer").first).to_have_text(HOSTILE)
        await page.get_by_role("tab", name="Raw events").click()
        await expect(page.get_by_label("The event as JSON")).to_be_visible()
        assert await page.locator("#app img, #app script, #app iframe").count() == 0
        assert await page.evaluate("window.wasRun") is None


async def test_the_browser_refuses_markup_that_a_script_writes_and_tells(browser: Browser, scripted: Listening) -> None:
    async with new_page(browser, scripted.http) as (page, watch):
        await page.goto(scripted.console_link)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        write = "try { document.body.innerHTML = '<b>x</b>'; 'written' } catch (error) { error.name }"
        assert await page.evaluate(write) == "TypeError"
        assert any("TrustedHTML" in each for each in watch.complaints)


async def test_thousands_of_steps_keep_the_page_small(browser: Browser, scripted: Listening) -> None:
    result = await call(scripted, "reasoning.execute", query=str(MANY), strategy="many")
    async with watched_page(browser, scripted) as page:
        await show_run(page, scripted, result["execution_id"])
        steps = page.get_by_role("listbox", name="Steps")
        await expect(steps.get_by_role("option").first).to_have_attribute("aria-setsize", str(MANY))
        await steps.focus()
        for key, number in (("End", MANY), ("PageUp", MANY - 12), ("Home", 1)):
            await page.keyboard.press(key)
            await expect(steps.locator("[aria-selected=true]")).to_have_attribute("aria-posinset", str(number))
            assert await page.evaluate("document.querySelectorAll('*').length") < 600
        await expect(page.get_by_role("heading", name="Step 1:")).to_be_visible()
        await steps.hover()
        await page.mouse.wheel(0, 20_000)
        near = steps.locator("[role=option]").nth(10)
        # The wheel moves the rows, and the step that is chosen stays.
        await expect(near).not_to_have_attribute("aria-posinset", "11")
        assert int(await near.get_attribute("aria-posinset") or 0) > 100
        assert await page.evaluate("document.querySelectorAll('*').length") < 600
        await expect(page.get_by_role("heading", name="Step 1:")).to_be_visible()


async def test_a_stream_that_is_cut_is_resumed_without_loss_and_two_tabs_see_the_same(
    browser: Browser, scripted: Listening, script: Script
) -> None:
    execution_id = await begin(scripted, query="Please hold.", strategy="chain_of_thought")
    async with cutting_proxy(scripted.http) as proxy, watched_page(browser, scripted) as other:
        there = f"http://127.0.0.1:{proxy.port}"
        async with new_page(browser, there) as (page, watch):
            await page.goto(f"{there}/console#token={scripted.token}")
            for each, home in ((page, f"{there}/console"), (other, scripted.console)):
                await each.goto(f"{home}#/run/{execution_id}")
                await expect(each.get_by_text("running").first).to_be_visible()
                # It was written before the page was opened.
                await expect(each.locator(".writing p")).to_have_text("First half,")
            # What is told must be written into a place that a screen reader knows already.
            told = page.get_by_role("status")
            await expect(told).to_have_count(2)
            made = proxy.made
            proxy.cut()
            await expect(told.get_by_text("Resuming after event 1")).to_be_visible()
            await expect(told).to_have_count(2)
            await expect(page.locator(".writing p")).to_have_text("First half, […]")
            script.release.set()
            for each in (page, other):
                await expect(each.get_by_label("Answer").first).to_have_text("42")
                await expect(each.get_by_role("status").last).to_have_text("The run has ended: answered.")
                await each.get_by_role("tab", name="Raw events").click()
                await expect(each.get_by_role("listbox", name="Events").get_by_role("option")).to_have_count(3)
            assert proxy.made > made
            assert watch.complaints == []
    script.release.clear()


async def test_stop_ends_a_run_for_every_tab(browser: Browser, scripted: Listening) -> None:
    execution_id = await begin(scripted, query="Please hold on.", strategy="chain_of_thought")
    async with watched_page(browser, scripted) as one, watched_page(browser, scripted) as other:
        for page in (one, other):
            await page.goto(f"{scripted.console}#/run/{execution_id}")
            await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await one.get_by_role("button", name="Stop").click()
        for page in (one, other):
            await expect(page.locator(".title .badge")).to_have_text("■ cancelled")


def mint(lifetime_s: float) -> str:
    minter = TokenMinter(key=KEY, issuer="reasond", audience="reasond", max_lifetime_s=3600)
    return minter.mint(subject="developer", permissions=[ADMIN], lifetime_s=lifetime_s, now=datetime.now(UTC))


async def test_a_token_that_expires_while_the_page_is_open_is_asked_for_over_the_screen(
    browser: Browser, scripted: Listening
) -> None:
    async with new_page(browser, scripted.http, width=WIDTH) as (page, watch):
        table, dialog = page.get_by_role("table"), page.get_by_role("dialog")
        # A busy machine may take longer to open the page than the first token lives.
        for lifetime_s in (4, 16, 64):
            token = mint(lifetime_s)
            result = await call(scripted, "reasoning.execute", query="How much paint?", strategy="chain_of_thought")
            await page.goto("about:blank")
            await page.goto(f"{scripted.console}#token={token}")
            await expect(table.or_(dialog).first).to_be_visible()
            if not await dialog.count():
                break
        await expect(table).to_be_visible()
        # The list asks again every 5 s.
        await expect(dialog.get_by_role("alert")).to_contain_text("Token has expired", timeout=2 * LIMIT_MS)
        await expect(page.locator("table")).to_be_visible()
        await examine(page, "token", height=620)
        await dialog.get_by_role("button", name="Not now").click()
        await expect(page.get_by_role("alert").filter(has_text="Token has expired")).to_be_visible()
        # The list asks again by itself, and so does the dialog.
        await dialog.get_by_label("Token").fill(mint(3600))
        await dialog.get_by_role("button", name="Go on").click()
        await expect(dialog).to_have_count(0)
        await link_to(page, result["execution_id"]).click()
        await expect(page.get_by_text("answered").first).to_be_visible()
        assert watch.complaints == []


async def test_a_server_that_stops_is_told_and_its_successor_goes_on_with_the_run(
    browser: Browser, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "REASOND_CONFIG": os.devnull,
        "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
        "REASOND__SERVER__HTTP_ADDRESS": f"127.0.0.1:{port}",
        "REASOND__SERVER__DRAIN_GRACE_S": "1",
        "REASOND__STORE__URL": f"sqlite:///{tmp_path / 'reasond.db'}",
    }
    first, second = Script(), Script()
    second.release.set()
    before = Server(load(None, environ), environ=environ, dev=True, model=first.model())
    listening = await before.start()
    async with new_page(browser, listening.http) as (page, watch):
        execution_id = await begin(listening, query="Please hold.", strategy="chain_of_thought")
        await page.goto(listening.console_link)
        await page.goto(f"{listening.console}#/run/{execution_id}")
        await expect(page.locator(".badge.busy")).to_be_visible()
        await before.drain()
        await expect(page.get_by_text("Trying again")).to_be_visible()
        after = Server(load(None, environ), environ=environ, dev=True, model=second.model())
        listening = await after.start()
        try:
            # The successor has another key, so the token of this tab is refused.
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Token").fill(listening.token)
            await dialog.get_by_role("button", name="Go on").click()
            await expect(page.get_by_label("Answer").first).to_have_text("42")
            await expect(page.get_by_text("Trying again")).to_have_count(0)
            assert watch.complaints == []
        finally:
            await page.close()
            await after.stop()
