"""Programs that jobs run as they are."""

from pathlib import Path


def ddp_path() -> Path:
    return Path(__file__).with_name("ddp.py")


def linear_path() -> Path:
    return Path(__file__).with_name("linear.py")


def path_of(script: str) -> Path:
    return Path(__file__).with_name(f"{script}.py")
