"""Small wheels, built here: pure Python packages of one module."""

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path


def wheel(folder: Path, name: str, version: str, *, needs: Sequence[str] = ()) -> Path:
    """A package whose module of the same name says its VERSION."""
    folder.mkdir(parents=True, exist_ok=True)
    path, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as packed:
        for name_inside, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            packed.writestr(name_inside, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
