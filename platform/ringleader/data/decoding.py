"""The work of reading rows that are shuffled one by one, from blocks of which not all stay in memory."""


def decoded_per_row(*, rows: int, blocks: int, size_bytes: int, cache_bytes: int, at_once: int) -> float:
    """The number of rows that are decoded for each one that is used, about: 1 where all blocks stay in memory.

    Args:
        size_bytes: of all blocks, decoded.
        cache_bytes: as much of them stays.
        at_once: rows that are read together; each block that they lie in is decoded once for them.
    """
    if size_bytes <= cache_bytes or not rows:
        return 1.0
    # That many different blocks do so many rows hit, drawn at random.
    touched = blocks * (1 - (1 - 1 / blocks) ** at_once)
    missing = 1 - cache_bytes / size_bytes
    return max(1.0, touched * missing * rows / blocks / at_once)
