"""Transforms of one image."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor


class ToTensor:
    def __call__(self, image: np.ndarray) -> Tensor:
        return torch.from_numpy(image)[None] / 255


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = mean[0], std[0]

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self._mean) / self._std


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> Any:
        return reduce(lambda value, transform: transform(value), self._transforms, image)
