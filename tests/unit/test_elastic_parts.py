"""Who holds which part of the servers' state."""

from itertools import combinations

import pytest

from ringleader.elastic.parts import gifts, holders, parts_of, slots_of

EVERY = [(parts, backups) for parts in range(1, 7) for backups in range(3)]


@pytest.mark.parametrize(("parts", "backups"), EVERY)
def test_slots_and_parts_are_two_views_of_the_same(parts, backups):
    held = {(slot, part) for slot in range(parts) for part in parts_of(slot, parts, backups)}
    assert held == {(slot, part) for part in range(parts) for slot in slots_of(part, parts, backups)}
    assert len(held) == parts * min(parts, backups + 1)


@pytest.mark.parametrize(("parts", "backups"), EVERY)
def test_a_part_is_lost_only_with_as_many_neighbours_as_hold_it(parts, backups):
    for missing in range(min(parts, backups + 1)):
        for gone in combinations(range(parts), missing):
            assert all(holders([s for s in range(parts) if s not in gone], parts, backups))
    together = set(slots_of(0, parts, backups))
    assert not all(holders([s for s in range(parts) if s not in together], parts, backups))


def test_a_new_server_gets_each_part_from_somebody_who_has_it():
    held_by = holders((0, 2, 1), 3, 1)
    assert held_by == ((0, 2), (2, 1), (1, 0))
    assert gifts(held_by, {2}) == ((2, 0, (0,)), (2, 1, (1,)))
    assert gifts(held_by, ()) == ()
    assert gifts(((), (0, 1)), {1}) == ((1, 0, (1,)),)


def test_a_part_that_nobody_has_is_named():
    with pytest.raises(ValueError, match="no server holds part 1"):
        gifts(holders((0, 2, 1), 3, 1), {1, 2})
