"""What a change reaches: a test that imports the module, by others, or a helper of the tests."""

from reached import helpers_of, is_python, module_of, reached


def test_a_module_reaches_the_tests_that_import_it_by_others() -> None:
    files = reached(["platform/ringleader/comm/codecs/int8.py"])
    assert files is not None
    assert "tests/conformance/test_codecs.py" in files  # imports the registry
    assert "tests/e2e/test_page.py" in files  # starts the product
    assert "tests/unit/test_reached.py" not in files


def test_a_helper_reaches_the_tests_that_need_it() -> None:
    files = reached(["tests/unit/token_members.py"])
    assert files is not None
    assert "tests/unit/test_token_ring.py" in files
    assert "tests/unit/test_codecs_registry.py" not in files
    assert not any(file.startswith("tests/e2e/") for file in files)


def test_what_is_no_module_reaches_all() -> None:
    assert reached(["pyproject.toml"]) is None
    assert reached(["tests/conftest.py"]) is None
    assert reached(["platform/ringleader/gone.py"]) is None


def test_names() -> None:
    assert module_of("platform/ringleader/spec/__init__.py") == "ringleader.spec"
    assert module_of("tests/unit/test_a.py") is None
    assert is_python("api/ringleader_api/log.py")
    assert not is_python("api/web/src/main.ts")
    assert "tests/unit/token_members.py" in helpers_of("tests/unit/test_token_ring.py")
