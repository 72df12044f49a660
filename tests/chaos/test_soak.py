"""Two hundred seeded faults through the full stack: `ringleader bench soak --full`, as a test."""

import os
import random

import pytest

from ringleader.bench.main import OK, main

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]


def test_every_job_of_the_soak_ends_with_the_same_weights_and_leaves_nothing() -> None:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    assert main(["soak", "--full", "--json", f"--seed={seed}"]) == OK
