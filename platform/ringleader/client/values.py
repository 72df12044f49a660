"""Values as Python source that makes the same again: numbers, text, paths, torch's words, and what is made of them."""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

_AS_THEY_ARE = (bool, int, str, bytes, type(None))
_OF_TORCH = ("device", "dtype")


class _NoSource(ValueError):
    """There is none for such a value."""


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
    """None: it cannot be written down, or contains something that cannot. Imports nothing: whose module is not loaded
    is none of its values."""
    spelling = _Spelling()
    try:
        return Source(spelling.of(value), frozenset(spelling.modules))
    except (_NoSource, RecursionError):
        return None


@dataclass(slots=True)
class _Spelling:
    modules: set[str] = field(default_factory=set)

    def of(self, value: Any) -> str:
        """Raises _NoSource, and RecursionError of what contains itself."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return repr(value)
        if kind is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if kind is complex:
            return f"complex({self.of(value.real)}, {self.of(value.imag)})"
        if kind is dict:
            return "{" + ", ".join(f"{self.of(key)}: {self.of(part)}" for key, part in value.items()) + "}"
        if kind in (list, tuple, set, frozenset):
            parts = f"[{', '.join(map(self.of, value))}]"
            return parts if kind is list else f"{kind.__name__}({parts})"
        return self._called(value)

    def _called(self, value: Any) -> str:
        """What a call, or a name of its module, makes."""
        kind = type(value)
        if kind is type(Path()):
            return self._name("pathlib", f"Path({value.as_posix()!r})")
        if kind in (PurePosixPath, PureWindowsPath):
            return self._name("pathlib", f"{kind.__name__}({str(value)!r})")
        if kind in [getattr(sys.modules.get("torch"), name, None) for name in _OF_TORCH]:
            return self._name("torch", repr(value).removeprefix("torch."))
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
            number = value.item()
            if type(number) in (bool, int, float, complex) and not isinstance(value, numpy.timedelta64):
                return self._name("numpy", f"{kind.__name__}({self.of(number)})")
        raise _NoSource

    def _name(self, module: str, text: str) -> str:
        self.modules.add(module)
        return f"_{module}.{text}"
