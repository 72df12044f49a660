"""Reading a YAML file in which no key is named twice."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MOST_NODES = 10_000
"""The most keys, values and lists of a file, each alias with what it stands for. Nine lines can mean a billion."""
LONGEST_NUMBER = 1000
"""The most characters of a number. Python writes out no whole number of more than 4,300 digits, in errors neither."""


class Unreadable(ValueError):
    """There is no such file, or it is no YAML; the message says what is wrong, and where."""


def read(path: Path) -> Any:
    """Read the file as plain Python values.

    Raises:
        Unreadable: it cannot be read, is no YAML, is nested too deeply, holds too much, or names a key twice.
    """
    try:
        with path.open(encoding="utf-8") as file:  # its name is in the errors
            return yaml.load(file, Loader=_Loader)
    except RecursionError:
        raise Unreadable("the file is nested too deeply") from None
    except (
        OSError,
        ValueError,
        OverflowError,
        yaml.YAMLError,
    ) as error:  # ValueError: not UTF-8, or a date that there is not; OverflowError: 1:1:1.5 with hundreds of parts
        raise Unreadable(str(error)) from None


class _Loader(yaml.SafeLoader):
    """A loader that compares keys before `<<` is merged: a merged key may be set again. It counts before it builds."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[Hashable] = set()
        for key, _ in node.value:
            # With the tag: `1` and `"1"` are two keys.
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                what = f"the key {key.value!r}" if isinstance(key, yaml.ScalarNode) else "a key"
                raise yaml.MarkedYAMLError(problem=f"{what} appears twice", problem_mark=key.start_mark)
            seen.add(name)
        return node

    def number(self, node: yaml.ScalarNode) -> Any:
        """The number that the text means. Raises MarkedYAMLError: it is too long."""
        if len(node.value) > LONGEST_NUMBER:
            problem = f"a number of more than {LONGEST_NUMBER} characters"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return yaml.SafeLoader.yaml_constructors[node.tag](self, node)


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _Loader.number)


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """Count the nodes it stands for, each alias as what it names. Raises MarkedYAMLError: too many, or endless.

    Args:
        counted: the number by node, as far as it is known; 0 while it is being counted.
    """
    known = counted.get(id(node))
    if known is not None:
        if not known:
            raise yaml.MarkedYAMLError(
                problem="an alias refers to a value that contains it", problem_mark=node.start_mark
            )
        return known
    counted[id(node)] = 0
    inside = node.value if isinstance(node, yaml.SequenceNode) else ()
    if isinstance(node, yaml.MappingNode):
        inside = [part for pair in node.value for part in pair]
    total = 1 + sum(_count(part, counted) for part in inside)
    if total > MOST_NODES:
        problem = f"more than {MOST_NODES} values, aliases expanded"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    counted[id(node)] = total
    return total
