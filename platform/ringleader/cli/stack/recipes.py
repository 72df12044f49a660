"""The three services: Ray's head, the MLflow server, the API."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from ringleader.cli.stack.home import Home
from ringleader.cli.stack.service import Recipe
from ringleader.client.unix_socket import ClientRoute, unix_url

LOOPBACK = "127.0.0.1"
MLFLOW_PREFIX = "/mlflow"


@dataclass(frozen=True, slots=True)
class Recipes:
    """The recipe of each service; tests bring smaller ones."""

    ray: Callable[[Home, int], Recipe]
    mlflow: Callable[[Home], Recipe]
    api: Callable[[Home, int, str, str], Recipe]


def mlflow_url(home: Home) -> str:
    """The address of this home's MLflow."""
    return unix_url(home.mlflow_socket, MLFLOW_PREFIX)


def ray_head(home: Home, num_cpus: int) -> Recipe:
    return Recipe(
        name="ray",
        command=_module("ringleader.runtime.head", "--home", str(home.root), "--num-cpus", str(num_cpus)),
        environ=_environ(home),
        ready=lambda said: bool(said and said.get("address")),
        start_deadline_s=90,
        grace_s=15,
    )


def mlflow_server(home: Home) -> Recipe:
    """MLflow on a socket in the home."""
    folder = home.root / "mlflow"
    return Recipe(
        name="mlflow",
        command=_module(
            "mlflow",
            "server",
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(folder / "artifacts")),
            # Relative to the home, where it runs: the path of a socket has at most 107 bytes.
            # Not on loopback: it checks no credential, and its assistant runs commands for any client there. Users
            # reach it through the API, which checks a credential and passes on tracking calls only.
            *("--uvicorn-opts", f"--uds {home.mlflow_socket.relative_to(home.root)} --no-proxy-headers"),
            *("--workers", "1"),
            *("--static-prefix", MLFLOW_PREFIX),
        ),
        environ={
            **_environ(home),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_ENABLE_REMOTE_ASSISTANT": "false",
        },
        ready=_answers(unix_url(home.mlflow_socket, "/health"), f"{mlflow_url(home)}/health"),
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
    """Variables of every service."""
    return {
        "RINGLEADER_HOME": str(home.root),
        # In each service, never left to Ray's defaults: one without them would open its ports to anybody.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home.ray_token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _answers(*urls: str) -> Callable[[dict[str, Any] | None], bool]:
    """A check for readiness: whether one of the addresses answers with success."""
    ways = [ClientRoute.to(url) for url in urls]

    def ready(said: dict[str, Any] | None) -> bool:
        for way in ways:
            transport = httpx.HTTPTransport(uds=way.uds)
            try:
                # trust_env would take a proxy from the environment, and none can reach this machine's loopback.
                with httpx.Client(transport=transport, timeout=2, trust_env=False) as http:
                    if http.get(way.url).is_success:
                        return True
            except httpx.TransportError:
                continue
        return False

    return ready


REAL = Recipes(ray_head, mlflow_server, api)
