"""A weights file (safetensors), as a job leaves it behind: read back model by model."""

import json
import re
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import BeginningUnreadable, beginning

SUFFIX = ".safetensors"
MODELS = "ringleader.models"
"""The file's metadata on how many models are in it, each under its number where there is more than one."""
HEAD_BYTES = 8
_NUMBERED = re.compile(r"(\d+)\.(.+)")


def weights_at(uri: str) -> list[dict[str, Tensor]]:
    """The states of the models in the file of that URI, which `init_from` names.

    Raises:
        BeginningUnreadable: it is missing, or no weights file.
        CheckpointsUnreachable: its file system does not answer.
    """
    folder, _, file = uri.rpartition("/")
    with beginning(uri):
        content = Folder(folder or "/").loose(file)
    try:
        tensors = load(content)
        size = int.from_bytes(content[:HEAD_BYTES], "little")
        told: dict[str, str] = json.loads(content[HEAD_BYTES : HEAD_BYTES + size]).get("__metadata__", {})
    except (SafetensorError, ValueError) as error:
        raise BeginningUnreadable(uri, f"it is not a weights file ({error})") from None
    for name, same in told.items():  # one tensor under several names is in the file once
        if name not in tensors and same in tensors:
            tensors[name] = tensors[same]
    # Another program's file may say anything under this name, or nothing.
    count = told.get(MODELS, "1")
    return _apart(tensors, int(count)) if count.isdecimal() and int(count) > 1 else [tensors]


def _apart(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    models: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        found = _NUMBERED.fullmatch(name)
        if found and int(found[1]) < count:
            models[int(found[1])][found[2]] = tensor
    return models
