"""A library that is not there is said in a sentence, with the line that installs it."""

import pytest

from ringleader.adapters.library import needed
from ringleader.errors import LibraryMissing


def test_a_missing_library_is_named_with_what_to_install() -> None:
    with (
        pytest.raises(
            LibraryMissing, match=r"transformers is not installed.* pip install 'ringleader\[hf\]'"
        ),
        needed("transformers", "hf"),
    ):
        raise ModuleNotFoundError("No module named 'transformers.models'", name="transformers.models")


def test_what_a_library_itself_misses_is_left_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="tokenizers"), needed("transformers", "hf"):
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")
