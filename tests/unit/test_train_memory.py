"""Keeping freed memory: taken by glibc, refused without harm elsewhere."""

import platform
import subprocess
import sys

import pytest

from ringleader.train.memory import KEEP_BYTES, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, set_both


def test_glibc_takes_the_setting():
    code = "from ringleader.train.memory import keep_freed_memory; print(keep_freed_memory())"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == str(platform.libc_ver()[0] == "glibc")


@pytest.mark.parametrize(
    ("most_bytes", "kept"),
    [
        (KEEP_BYTES, {M_MMAP_THRESHOLD: KEEP_BYTES, M_TRIM_THRESHOLD: KEEP_BYTES}),
        (32 << 20, {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: KEEP_BYTES}),
        (0, {}),
    ],
)
def test_both_thresholds_are_set_to_the_most_that_this_glibc_takes_or_none(
    most_bytes: int, kept: dict[int, int]
) -> None:
    """An older glibc takes 32 MB; with one threshold alone it would map every tensor above 128 KB by itself."""
    held: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        if parameter == M_MMAP_THRESHOLD and value > most_bytes:
            return 0
        held[parameter] = value
        return 1

    assert set_both(mallopt) is bool(kept)
    assert held == kept
