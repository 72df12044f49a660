"""The three services: Ray's head, the MLflow server, the API."""

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from ringleader.cli.stack.home import Home
from ringleader.cli.stack.service import Recipe

LOOPBACK = "127.0.0.1"
MLFLOW_PREFIX = "/mlflow"


@dataclass(frozen=True, slots=True)
class Recipes:
    """How each service is run; tests bring smaller ones."""

    ray: Callable[[Home, int], Recipe]
    mlflow: Callable[[Home, int], Recipe]
    api: Callable[[Home, int, str, str], Recipe]


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def ray_head(home: Home, num_cpus: int) -> Recipe:
    return Recipe(
        name="ray",
        command=_module("ringleader.runtime.head", "--home", str(home.root), "--num-cpus", str(num_cpus)),
        environ=_environ(home),
        ready=lambda said: bool(said and said.get("address")),
        start_deadline_s=90,
        grace_s=15,
    )


def mlflow_server(home: Home, port: int) -> Recipe:
    """On loopback without a credential of its own; users reach it through the API, which asks for one."""
    folder = home.root / "mlflow"
    return Recipe(
        name="mlflow",
        command=_module(
            "mlflow",
            "server",
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(folder / "artifacts")),
            *("--host", LOOPBACK, "--port", str(port), "--workers", "1"),
            *("--static-prefix", MLFLOW_PREFIX),
        ),
        environ={
            **_environ(home),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        },
        ready=_answers(f"http://{LOOPBACK}:{port}/health", f"http://{LOOPBACK}:{port}{MLFLOW_PREFIX}/health"),
        start_deadline_s=120,
    )


def api(home: Home, port: int, ray_address: str, mlflow_url: str) -> Recipe:
    return Recipe(
        name="api",
        command=_module("ringleader_api"),
        environ={
            **_environ(home),
            "RINGLEADER_RAY_ADDRESS": ray_address,
            "RINGLEADER_MLFLOW_URL": mlflow_url,
            "RINGLEADER_HOST": LOOPBACK,
            "RINGLEADER_PORT": str(port),
            # Who reaches this API with its token owns all its processes anyway.
            "RINGLEADER_ALLOW_FAULTS": "true",
        },
        ready=lambda said: bool(said and said.get("url")),
        is_set_up=True,
        start_deadline_s=90,
    )


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def _environ(home: Home) -> Mapping[str, str]:
    """Mode and token of Ray's authentication are set in every process, never left to its defaults."""
    return {
        "RINGLEADER_HOME": str(home.root),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home.ray_token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _answers(*urls: str) -> Callable[[dict[str, Any] | None], bool]:
    """Ready when one of the addresses answers 200."""

    def ready(said: dict[str, Any] | None) -> bool:
        for url in urls:
            try:
                if httpx.get(url, timeout=2, trust_env=False).is_success:
                    return True
            except httpx.TransportError:
                continue
        return False

    return ready


REAL = Recipes(ray_head, mlflow_server, api)
