"""The proof that words and messages come from a member of the attempt: HMAC-SHA-256 under a key of their meeting."""

import hmac
import os

SECRET_BYTES = 32
TAG_BYTES = 32
NONCE_BYTES = 32


class Seal:
    """The key of one meeting. A tag made at another meeting, or in another attempt, does not fit it.

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
        """TAG_BYTES over the parts and the boundaries between them."""
        # Without the lengths the parts b"ab", b"c" and b"a", b"bc" would have one tag.
        lengths = b"".join(len(part).to_bytes(8, "little") for part in parts)
        return hmac.digest(self._key, b"".join((len(parts).to_bytes(8, "little"), lengths, *parts)), "sha256")

    def fits(self, tag: bytes, *parts: bytes) -> bool:
        """Whether `tag` was made of these parts with this key. Takes equally long whatever is wrong."""
        return hmac.compare_digest(tag, self.tag(*parts))


def new_secret() -> bytes:
    """SECRET_BYTES of randomness that nobody can guess."""
    return os.urandom(SECRET_BYTES)


def nonce() -> bytes:
    """NONCE_BYTES of fresh randomness to ask a proof over."""
    return os.urandom(NONCE_BYTES)


WITHIN = Seal(new_secret(), "one process")
"""The seal of members that are threads of this process, or its forks: they need no meeting."""
