"""Secrets of a job, kept from whoever reads about it: masked in its output, before that is passed on or cut, and left
out of its job file in reports, MLflow and W&B, as are the addresses of alerts. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LEAST_CHARACTERS, MOST_CHARACTERS = 6, 32_768
"""The length of values that are masked: shorter ones stand in ordinary words, too."""
MASK = "***"
LEFT_OUT = "(left out)"
# To the next white space, so that no character is looked at twice.
_BEHIND_SCHEME = re.compile(r"://\S+")


def masks_of(values: Iterable[str]) -> list[str]:
    """The texts to black out for these secrets: each value, and each of its lines; longest first."""
    texts = {text for value in values for text in (value, *value.splitlines())}
    # Longest first: masking a secret inside a longer one would leave the rest of that readable.
    return sorted((text for text in texts if sized(text)), key=len, reverse=True)


def masked(told: Any, masks: Sequence[str]) -> Any:
    """The same JSON value with every occurrence of a secret blacked out, in keys too."""
    if isinstance(told, str):
        for text in masks:
            told = told.replace(text, MASK)
        return told
    if isinstance(told, dict):
        return {masked(key, masks): masked(value, masks) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [masked(value, masks) for value in told]
    return told


def sized(value: str) -> bool:
    return LEAST_CHARACTERS <= len(value) <= MOST_CHARACTERS


def for_strangers(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The job file without values of `env`, without the addresses of alerts, and with URIs as `without_credentials`
    gives them."""
    shown: dict[str, Any] = {key: _shown(value) for key, value in spec.items()}
    # Stored files of earlier versions may lack keys.
    shown["env"] = dict.fromkeys(spec.get("env") or {}, LEFT_OUT)
    for rule in shown.get("alerts") or []:
        rule["channels"] = [_channel(one) for one in rule["channels"]]
    return shown


def without_credentials(text: str) -> str:
    """The text, its URIs without user, password and query."""
    # Storage is opened with keys there, and links are signed.
    return _BEHIND_SCHEME.sub(lambda found: f"://{_bare(found[0][3:])}", text)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: _shown(part) for key, part in value.items()}
    return [_shown(part) for part in value] if isinstance(value, list) else value


def _channel(channel: Mapping[str, Any]) -> dict[str, Any]:
    """A channel of an alert without its receiver's address."""
    # Names of secrets stay; who is told, and by which address, is nobody else's business.
    hidden = {key: LEFT_OUT for key in ("webhook", "mail") if channel.get(key) is not None}
    return {**channel, **hidden}


def _bare(uri: str) -> str:
    place, query, _ = uri.partition("?")
    authority, slash, path = place.partition("/")
    # At the last one: a password may have some of its own.
    user, at, host = authority.rpartition("@")
    return f"{LEFT_OUT + at if user else ''}{host}{slash}{path}{query and query + LEFT_OUT}"
