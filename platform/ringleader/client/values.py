"""Values as Python source that makes them again: numbers, text, paths, torch's dtypes and devices, and collections."""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

_AS_THEY_ARE = (bool, int, str, bytes, type(None))
_OF_TORCH = ("device", "dtype")


class _NoSource(ValueError):
    """A value that no source can make."""


@dataclass(frozen=True, slots=True)
class Source:
    """The text, and the modules that it needs: `torch` is called `_torch` in it."""

    text: str
    modules: frozenset[str]

    @property
    def imports(self) -> dict[str, str]:
        """The line that imports each, by the name it has in the text."""
        return {f"_{module}": f"import {module} as _{module}" for module in sorted(self.modules)}


def source_of(value: Any) -> Source | None:
    """The value as source; None where it, or something in it, cannot be written down."""
    # Nothing is imported for it: a module that is not loaded has made none of the values.
    spelling = _Spelling()
    try:
        return Source(spelling.of(value), frozenset(spelling.modules))
    except (_NoSource, RecursionError):
        return None


@dataclass(slots=True)
class _Spelling:
    modules: set[str] = field(default_factory=set)

    def of(self, value: Any) -> str:
        """Spell the value. Raises _NoSource, and RecursionError where it contains itself."""
        kind = type(value)
        # By the exact class: one derived from it, as an enum, may print as anything.
        if kind in _AS_THEY_ARE:
            return repr(value)
        if kind is float:
            # inf and nan have no literal.
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if kind is complex:
            return f"complex({self.of(value.real)}, {self.of(value.imag)})"
        if kind is dict:
            return "{" + ", ".join(f"{self.of(key)}: {self.of(part)}" for key, part in value.items()) + "}"
        if kind in (list, tuple, set, frozenset):
            # From a list: {} is no set, and a tuple of one value has a comma.
            parts = f"[{', '.join(map(self.of, value))}]"
            return parts if kind is list else f"{kind.__name__}({parts})"
        return self._called(value)

    def _called(self, value: Any) -> str:
        """Spell a value that a call, or a name of its module, makes."""
        kind = type(value)
        if kind is type(Path()):  # the machine's own class of paths
            return self._name("pathlib", f"Path({value.as_posix()!r})")
        if kind in (PurePosixPath, PureWindowsPath):
            return self._name("pathlib", f"{kind.__name__}({str(value)!r})")
        if kind in [getattr(sys.modules.get("torch"), name, None) for name in _OF_TORCH]:
            return self._name("torch", repr(value).removeprefix("torch."))
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
            number = value.item()
            # The number of a timedelta64 has lost its unit.
            if type(number) in (bool, int, float, complex) and not isinstance(value, numpy.timedelta64):
                return self._name("numpy", f"{kind.__name__}({self.of(number)})")
        raise _NoSource

    def _name(self, module: str, text: str) -> str:
        self.modules.add(module)
        return f"_{module}.{text}"
