"""A library that is not there is said in a sentence, with the line that installs it."""

import pytest

from ringleader.adapters.library import needed
from ringleader.errors import LibraryMissing


def test_a_missing_library_is_named_with_what_to_install() -> None:
    with (
        pytest.raises(LibraryMissing, match=r"nowhere is not installed.* pip install 'ringleader\[hf\]'"),
        needed("nowhere", "hf"),
    ):
        raise ModuleNotFoundError("No module named 'nowhere.models'", name="nowhere.models")


def test_what_a_library_itself_misses_is_left_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="tokenizers"), needed("transformers", "hf"):
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")


def test_a_version_without_what_the_adapter_needs_is_named() -> None:
    told = r"^click \d[\d.]* is installed, which lacks what ringleader\.adapters\.click needs: it is tested with other "
    with pytest.raises(LibraryMissing, match=told), needed("click", "hf"):
        from click import CallbackOfAnotherVersion  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(LibraryMissing, match=told), needed("click", "hf"):
        import click.of_another_version  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(ImportError, match="PartOfAnother"), needed("click", "hf"):
        from json import PartOfAnother  # type: ignore[attr-defined]  # noqa: F401
