"""Errors that a benchmark raises instead of printing a figure that would not be true."""

from ringleader.errors import RingleaderError


class BrokenPromise(RingleaderError):
    """A run was measured in which a promise did not hold, for example a step was lost."""

    code = "broken_promise"


class PeerFailed(RingleaderError):
    """A process of a benchmark (ours or a peer's) ended early or passed its deadline."""

    code = "peer_failed"
