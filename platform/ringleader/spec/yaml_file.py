"""Reading a YAML file in which no key is named twice."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml


class Unreadable(ValueError):
    """There is no such file, or it is no YAML; the message says what is wrong, and where."""


def read(path: Path) -> Any:
    """What the file holds, as plain Python values.

    Raises:
        Unreadable: it cannot be read, is no YAML, is nested too deeply, or names a key twice.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except RecursionError:
        raise Unreadable("the file is nested too deeply") from None
    except (
        OSError,
        ValueError,
        yaml.YAMLError,
    ) as error:  # ValueError: not UTF-8, or a date that there is not
        raise Unreadable(str(error)) from None


class _Loader(yaml.SafeLoader):
    """Compares keys before `<<` is merged: a merged key may be set again."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[Hashable] = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return node
