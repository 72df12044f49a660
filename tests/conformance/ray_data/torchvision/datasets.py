"""Digits, 28 by 28, where an example asks for FashionMNIST."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

TRAIN, TEST = 320, 64


class FashionMNIST(Dataset[tuple[Any, int]]):
    """The first digits, or those behind them."""

    def __init__(self, root: str, train: bool, download: bool, transform: Any) -> None:
        digits = load_digits()
        rows = slice(0, TRAIN) if train else slice(TRAIN, TRAIN + TEST)
        images = np.kron(digits.images[rows], np.ones((1, 3, 3)))
        self._images = np.pad(images * 15, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
        self._labels = digits.target[rows].tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self._transform(self._images[row]), self._labels[row]
