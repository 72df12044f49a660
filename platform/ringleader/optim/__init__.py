"""Optimizers and learning rates for large global batches. Public as `ringleader.optim`; it stands on torch alone."""

from ringleader.optim.lamb import LAMB
from ringleader.optim.lars import LARS
from ringleader.optim.layerwise import layer_groups
from ringleader.optim.rates import WarmUp, scaled_rate

__all__ = ["LAMB", "LARS", "WarmUp", "layer_groups", "scaled_rate"]
