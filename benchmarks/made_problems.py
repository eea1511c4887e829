"""Write a hundred word problems of school mathematics with their right values: `python -m benchmarks.made_problems`.

Twenty stories of two to four steps, five times each with other names and numbers, always the same ones. The values are
computed beside the text. Writes made_problems.jsonl beside this file, for `benchmarks.prompts --tasks`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Story = Callable[[random.Random, str, str], tuple[str, int]]

TASKS: Final = Path(__file__).resolve().parent / "made_problems.jsonl"
TIMES: Final = 5
SEED: Final = 20261129
NAMES: Final = ("Mira", "Otto", "Lina", "Bela", "Yusuf", "Greta", "Ivo", "Sanna", "Pavel", "Noor")


def tell_of_crates(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Multiply, take away, take away."""
    crates, each, sold, rotten = draw.randint(12, 35), draw.randint(14, 28), draw.randint(60, 120), draw.randint(5, 30)
    text = (
        f"{name} has {crates} crates with {each} pears each, sells {sold} pears and throws {rotten} rotten ones away. "
    )
    return f"{text}How many pears are left?", crates * each - sold - rotten


def tell_of_wages(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Two rates of one week."""
    rate, usual, more = 2 * draw.randint(6, 11), draw.randint(30, 38), draw.randint(3, 9)
    text = (
        f"{name} earns {rate} euros an hour for the first {usual} hours of a week and half as much again beyond them. "
    )
    return (
        f"{text}What does {name} earn in a week of {usual + more} hours, in euros?",
        rate * usual + rate * 3 // 2 * more,
    )


def tell_of_prices(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Two percentages, one after the other."""
    price, off, on = 100 * draw.randint(3, 9), draw.choice((10, 20, 30, 40)), draw.choice((10, 20, 50))
    text = (
        f"A bicycle costs {price} euros. {name}'s shop lowers the price by {off} percent and later "
        "raises the new price "
    )
    return f"{text}by {on} percent. What does it cost now, in euros?", price * (100 - off) * (100 + on) // 10_000


def tell_of_ages(draw: random.Random, name: str, other: str) -> tuple[str, int]:
    """An equation with one unknown."""
    young, years = draw.randint(6, 15), draw.randint(3, 9)
    old = 3 * young
    text = (
        f"{name} is three times as old as {other}. In {years} years they will be {old + young + 2 * years} "
        "years old together. "
    )
    return f"{text}How old is {name} now?", old


def tell_of_tanks(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """A net rate."""
    inflow, leak, minutes, held = draw.randint(20, 40), draw.randint(3, 12), draw.randint(15, 60), draw.randint(50, 200)
    text = (
        f"{name}'s tank holds {held + (inflow - leak) * minutes} litres and has {held} litres in it. "
        f"A pipe brings {inflow} "
    )
    return f"{text}litres a minute and a leak loses {leak}. After how many minutes is the tank full?", minutes


def tell_of_trains(draw: random.Random, name: str, other: str) -> tuple[str, int]:
    """One who catches another up."""
    slow, hours = 10 * draw.randint(3, 7), draw.randint(2, 5)
    ahead = 10 * hours * draw.randint(1, 3)
    fast = slow + ahead // hours
    text = (
        f"{name} rides at {slow} kilometres an hour and is {ahead} kilometres ahead of {other}, who follows at {fast}. "
    )
    return f"{text}After how many hours does {other} reach {name}?", hours


def tell_of_gardens(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """A rectangle from its edge."""
    width, longer = draw.randint(6, 20), draw.randint(2, 9)
    text = (
        f"{name}'s garden is {longer} metres longer than it is wide, and its fence is {4 * width + 2 * longer} "
        "metres long. "
    )
    return f"{text}What is its area in square metres?", width * (width + longer)


def tell_of_wheels(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Two equations with two unknowns."""
    cars, bikes = draw.randint(8, 30), draw.randint(5, 25)
    text = (
        f"In {name}'s yard stand cars and motorcycles, {cars + bikes} in all, with {4 * cars + 2 * bikes} "
        "wheels together. "
    )
    return f"{text}How many cars are there?", cars


def tell_of_shares(draw: random.Random, name: str, other: str) -> tuple[str, int]:
    """A fraction, and a fraction of the rest."""
    whole = 12 * draw.randint(5, 20)
    text = f"{name} had {whole} stamps, gave a quarter of them to {other} and then a third of the rest to a friend. "
    return f"{text}How many stamps does {name} have now?", whole // 2


def tell_of_savings(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Weeks before and after."""
    week, before, after, game = 3 * draw.randint(4, 9), draw.randint(6, 14), draw.randint(2, 6), draw.randint(20, 60)
    text = (
        f"{name} saves {week} euros a week. After {before} weeks a third of the savings is spent, and "
        f"after {after} more weeks "
    )
    return (
        f"{text}of saving a game is bought for {game} euros. How many euros are left?",
        week * before * 2 // 3 + week * after - game,
    )


def tell_of_seats(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """A share of a product, and a difference."""
    rows, seats, share, empty = (
        draw.randint(12, 30),
        20 * draw.randint(1, 3),
        draw.choice((65, 75, 85, 90)),
        draw.randint(11, 60),
    )
    whole = rows * seats
    text = (
        f"{name}'s theatre has {rows} rows of {seats} seats. On Friday {share} percent of the seats "
        "were taken, on Saturday "
    )
    return (
        f"{text}all but {empty}. How many tickets were used on both days together?",
        whole * share // 100 + whole - empty,
    )


def tell_of_pages(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Whole weeks."""
    day, end, weeks = draw.randint(12, 30), draw.randint(25, 50), draw.randint(3, 7)
    text = f"{name} reads {day} pages on each of the five weekdays and {end} pages on Saturday and on Sunday each. "
    return f"{text}In how many weeks is a book of {(5 * day + 2 * end) * weeks} pages finished?", weeks


def tell_of_recipes(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """A proportion."""
    people, grams, guests = draw.choice((4, 5, 6)), draw.randint(40, 95), draw.randint(8, 21)
    text = (
        f"A recipe for {people} people needs {people * grams} grams of rice. {name} cooks for {guests} "
        "people and has already "
    )
    return f"{text}{grams} grams at home. How many grams of rice must {name} buy?", grams * guests - grams


def tell_of_ferries(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Earnings without costs."""
    cars, trips, fare, cost = draw.randint(20, 45), draw.randint(3, 8), draw.randint(7, 15), draw.randint(60, 140)
    text = (
        f"{name}'s ferry carries {cars} cars a trip and makes {trips} trips a day. A car pays {fare} "
        "euros and a trip costs "
    )
    return f"{text}{cost} euros. What is earned in a day after these costs, in euros?", trips * (cars * fare - cost)


def tell_of_fences(draw: random.Random, name: str, other: str) -> tuple[str, int]:
    """Two who work, one of them later."""
    first, second, late, hours = draw.randint(5, 12), draw.randint(5, 12), draw.randint(1, 4), draw.randint(5, 9)
    metres = first * hours + second * (hours - late)
    text = (
        f"{name} paints {first} metres of a fence an hour, {other} paints {second} and begins {late} "
        "hours later. The fence "
    )
    return f"{text}is {metres} metres long. How many hours after {name} began is it painted?", hours


def tell_of_hens(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """A rate of three days, in boxes."""
    hens, weeks, price = 15 * draw.randint(2, 6), draw.choice((15, 30, 45)), draw.randint(2, 5)
    text = (
        f"Each of {name}'s {hens} hens lays 2 eggs in 3 days. The eggs of {weeks} days are sold in "
        f"boxes of 10 for {price} euros. "
    )
    return f"{text}How many euros is that?", hens * 2 * weeks // 3 // 10 * price


def tell_of_buses(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Up and down, read backwards."""
    first, on, off, left = draw.randint(3, 9), draw.randint(6, 15), draw.randint(4, 10), draw.randint(12, 30)
    text = (
        f"At the first stop {first} people leave {name}'s bus and {on} get on, at the second stop {off} "
        "leave and nobody gets on. "
    )
    return (
        f"{text}Then {left} people are in the bus. How many were in it before the first stop?",
        left + off - on + first,
    )


def tell_of_taxis(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """A fixed and a running price, shared."""
    rate, friends, share = draw.choice((2, 3)), draw.randint(3, 5), draw.randint(9, 20)
    kilometres = (friends * share - 3) // rate
    start = friends * share - rate * kilometres
    text = (
        f"A taxi costs {start} euros and {rate} euros for each kilometre. {name} and {friends - 1} "
        "friends share the price of a "
    )
    return f"{text}ride of {kilometres} kilometres equally. What does each pay, in euros?", share


def tell_of_books(draw: random.Random, name: str, other: str) -> tuple[str, int]:
    """Three in a chain."""
    least, more = draw.randint(6, 18), draw.randint(3, 11)
    text = f"{other} has twice as many books as Tove, and {name} has {more} more than {other}. Together the three have "
    return f"{text}{5 * least + more} books. How many books does {name} have?", 2 * least + more


def tell_of_printers(draw: random.Random, name: str, _: str) -> tuple[str, int]:
    """Minutes of work and of pauses between."""
    speed, copies, minutes, pause = draw.randint(12, 30), draw.randint(4, 8), draw.randint(3, 7), draw.randint(2, 4)
    text = (
        f"{name}'s printer prints {speed} pages a minute. It prints {copies} copies of a report of "
        f"{speed * minutes} pages and must "
    )
    text += f"pause {pause} minutes after each copy except the last. "
    return f"{text}How many minutes does it take?", copies * minutes + (copies - 1) * pause


STORIES: Final[tuple[Story, ...]] = (
    tell_of_crates,
    tell_of_wages,
    tell_of_prices,
    tell_of_ages,
    tell_of_tanks,
    tell_of_trains,
    tell_of_gardens,
    tell_of_wheels,
    tell_of_shares,
    tell_of_savings,
    tell_of_seats,
    tell_of_pages,
    tell_of_recipes,
    tell_of_ferries,
    tell_of_fences,
    tell_of_hens,
    tell_of_buses,
    tell_of_taxis,
    tell_of_books,
    tell_of_printers,
)


def make_problems() -> list[dict[str, str]]:
    """Return all problems, as `benchmarks.prompts` reads them."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    found = []
    for _ in range(TIMES):
        for story in STORIES:
            question, answer = story(draw, *draw.sample(NAMES, 2))
            found.append({"question": question, "answer": str(answer)})
    return found


def main() -> None:
    """Write the file."""
    TASKS.write_text("".join(f"{json.dumps(each)}\n" for each in make_problems()), "utf-8")


if __name__ == "__main__":
    main()
