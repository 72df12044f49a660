"""Functions written for Ray Train on a session."""

from ringleader.adapters.ray_train.adopted_function import AdoptedFunction, running_session, training_function

__all__ = ["AdoptedFunction", "running_session", "training_function"]
