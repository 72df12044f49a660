"""The proof that words and messages come from a member of the attempt: HMAC-SHA-256 under a key of their meeting."""

import hmac
import os

SECRET_BYTES = 32
TAG_BYTES = 32
NONCE_BYTES = 32


class Seal:
    """The key of one meeting. Nothing that was said at another one, or in another attempt, fits it.

    Args:
        secret: the attempt's, which its supervisor hands to the members alone.
        scope: names attempt and generation, or attempt and pair.

    Raises:
        ValueError: the secret is too short to keep anybody out.
    """

    __slots__ = ("_key",)

    def __init__(self, secret: bytes, scope: str) -> None:
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"members meet with a secret of {SECRET_BYTES} bytes, not of {len(secret)}")
        self._key = hmac.digest(secret, scope.encode(), "sha256")

    def tag(self, *parts: bytes) -> bytes:
        """TAG_BYTES over the parts; where one ends and the next begins is part of it."""
        lengths = b"".join(len(part).to_bytes(8, "little") for part in parts)
        return hmac.digest(self._key, b"".join((len(parts).to_bytes(8, "little"), lengths, *parts)), "sha256")

    def fits(self, tag: bytes, *parts: bytes) -> bool:
        """Whether `tag` is what somebody who has the key makes of the parts. Takes as long whatever is wrong."""
        return hmac.compare_digest(tag, self.tag(*parts))


def new_secret() -> bytes:
    """SECRET_BYTES that nobody can guess."""
    return os.urandom(SECRET_BYTES)


def nonce() -> bytes:
    """NONCE_BYTES that have never been asked before."""
    return os.urandom(NONCE_BYTES)


WITHIN = Seal(new_secret(), "one process")
"""For members that are threads of this process, or its forks: they meet nowhere."""
