"""Permutations that are a function of a key, computed where they are asked for: no list of what is permuted.

A Feistel network (Luby and Rackoff, 1988) permutes the numbers of so many bits; what falls outside the range is
permuted again until it falls inside ("cycle walking": Black and Rogaway, 2002): twice on average at most.
"""

import numpy as np

ROUNDS = 6
LEAST_BITS = 6
"""Fewer give so few permutations that they repeat."""
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_ONE = np.uint64(1)


def mixed(values: np.ndarray) -> np.ndarray:
    """(n,) uint64, each bit of which depends on all bits of the value (splitmix64: Steele and others, 2014)."""
    values = values + _ODD[0]
    values = (values ^ (values >> np.uint64(30))) * _ODD[1]
    values = (values ^ (values >> np.uint64(27))) * _ODD[2]
    found: np.ndarray = values ^ (values >> np.uint64(31))
    return found


def permuted(places: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The number at each place of a permutation of range(size), a bijection for each size and key.

    Args:
        places: (n,) int64, each below its size.
        sizes: (n,) int64.
        keys: (n,) uint64.

    Returns:
        (n,) int64.
    """
    # Exact: sizes are far below 2**53, where float64 has every integer.
    bits = np.maximum(np.frexp((sizes - 1).astype(np.float64))[1], LEAST_BITS).astype(np.uint64)
    numbers = places.astype(np.uint64)
    left = np.arange(len(numbers))
    rounds = [mixed(keys + np.uint64(number)) for number in range(ROUNDS)]
    while len(left):
        numbers[left] = _encrypted(numbers[left], bits[left], [keys_of[left] for keys_of in rounds])
        left = left[numbers[left] >= sizes[left].astype(np.uint64)]
    return numbers.astype(np.int64)


def _encrypted(numbers: np.ndarray, bits: np.ndarray, rounds: list[np.ndarray]) -> np.ndarray:
    """One pass of the network over (n,) numbers of so many bits; halves differ by one bit where these are odd."""
    low_bits = bits - (bits >> _ONE)
    high_bits = bits - low_bits
    high, low = numbers >> low_bits, numbers & ((_ONE << low_bits) - _ONE)
    for number, keys in enumerate(rounds):
        if number % 2:
            low = low ^ _top(high, keys, low_bits)
        else:
            high = high ^ _top(low, keys, high_bits)
    found: np.ndarray = (high << low_bits) | low
    return found


def _top(half: np.ndarray, keys: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """So many bits that depend on a half and a key."""
    value = (half ^ keys) * _ODD[1]
    value = (value ^ (value >> np.uint64(32))) * _ODD[2]
    top: np.ndarray = value >> (np.uint64(64) - bits)
    return top
