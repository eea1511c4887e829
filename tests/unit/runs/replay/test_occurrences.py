"""Numbers of alike calls: never the same twice, the same again in the next life, and no memory for old ones."""

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.runs.replay.occurrences import Occurrences


@given(asked=st.lists(st.integers(min_value=0, max_value=400), max_size=1200))
def test_no_two_alike_have_one_number_and_the_same_askings_get_the_same_numbers_again(asked: list[int]) -> None:
    lives = [Occurrences(), Occurrences()]
    first, second = ([(each, life.next_of(f"model:{each}")) for each in asked] for life in lives)
    assert first == second
    assert len(set(first)) == len(first)
    assert all(number >= 1 for _, number in first)


@given(st.permutations(range(100)))
def test_among_the_last_hundred_the_order_of_different_ones_does_not_count(order: list[int]) -> None:
    occurrences = Occurrences()
    assert {each: occurrences.next_of(str(each)) for each in order} == dict.fromkeys(range(100), 1)
    assert {each: occurrences.next_of(str(each)) for each in reversed(order)} == dict.fromkeys(range(100), 2)


def test_what_was_asked_long_ago_goes_on_from_its_number() -> None:
    occurrences = Occurrences()
    assert [occurrences.next_of("why?") for _ in range(3)] == [1, 2, 3]
    others = [occurrences.next_of(f"other {number}") for number in range(5000)]
    assert occurrences.next_of("why?") > 3
    # Five thousand in 4096 places: some meet one that was let go, and begin above it.
    assert min(others) == 1
    assert 2 <= max(others) < 20
