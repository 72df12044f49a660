"""The training side of the platform: the Session of a training function, and the step transaction behind it."""

from ringleader.train.local import local_session
from ringleader.train.session import Session
from ringleader.train.state.fingerprints import weights_sha256

__all__ = ["Session", "local_session", "weights_sha256"]
