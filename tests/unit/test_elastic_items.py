"""The set of applied items behaves as a set of numbers, however it is stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.train.modes.items import ItemSet

NUMBERS = st.sets(st.integers(0, 40))


@given(NUMBERS, NUMBERS)
def test_items_behave_as_a_set(first: set[int], second: set[int]) -> None:
    one, two = ItemSet(beyond=first), ItemSet(beyond=second)
    assert [n for n in range(60) if n in one] == sorted(first)
    assert [n for n in range(60) if n in one & two] == sorted(first & second)
    assert list(one.missing(60)) == sorted(set(range(60)) - first)
    assert len(one) == len(first)
    union = one.copy()
    union.update(two)
    assert union == ItemSet(beyond=first | second)
    assert one == ItemSet(beyond=first), "a copy shares nothing"


@given(NUMBERS)
def test_items_survive_the_wire(numbers: set[int]) -> None:
    items = ItemSet(beyond=numbers)
    assert ItemSet.decode(items.encode()) == items


@given(NUMBERS)
def test_an_item_goes_in_once(numbers: set[int]) -> None:
    items = ItemSet()
    assert all(items.add(n) for n in numbers)
    assert not any(items.add(n) for n in numbers)


def test_items_in_order_are_one_number() -> None:
    items = ItemSet()
    for n in (2, 0, 1, 3):
        items.add(n)
    assert items.encode().tolist() == [4]


def test_items_are_no_key() -> None:
    with pytest.raises(TypeError):
        hash(ItemSet())
