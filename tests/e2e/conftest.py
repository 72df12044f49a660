"""What end-to-end tests share: one running stack."""

from collections.abc import Iterator

import pytest
from whole_stack import Running, whole_stack


@pytest.fixture(scope="package")
def stack() -> Iterator[Running]:
    """Everything `ringleader up` starts, shared by the tests of a run; each submits jobs of its own."""
    with whole_stack() as running:
        yield running
