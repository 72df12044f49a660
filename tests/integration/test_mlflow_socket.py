"""The MLflow of `ringleader up`: reached by the control plane, by no other account of the machine and no stranger."""

import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from accounts import as_nobody, needs_root, open_folder
from control_plane import stage
from integration.sockets import listening_hosts
from processes import below

from ringleader.cli.stack.home import Home
from ringleader.cli.stack.recipes import REAL, mlflow_url
from ringleader.cli.stack.service import Service
from ringleader.client.unix_socket import ClientRoute
from ringleader_api.tracking import Mlflow

pytestmark = pytest.mark.timeout(300)
CONNECT = "print(tried(socket.socket(socket.AF_UNIX).connect, sys.argv[1]))"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Home, Service]]:
    with open_folder() as folder, pytest.MonkeyPatch.context() as environ:
        environ.setenv(
            "MLFLOW_ENABLE_REMOTE_ASSISTANT", "true"
        )  # as somebody's shell may have it for another server
        environ.setenv("FORWARDED_ALLOW_IPS", "*")
        root = folder / "home"
        root.mkdir()
        root.chmod(0o755)  # as somebody made it who did not think of others
        home = Home(root)
        home.prepare()
        service = Service.start(REAL.mlflow(home), home)
        try:
            service.wait_ready()
            yield home, service
        finally:
            service.end()


def test_it_listens_on_no_port(served: tuple[Home, Service]) -> None:
    home, service = served
    assert listening_hosts(set(below(service.process.pid))) == set()
    assert stat.S_ISSOCK(home.mlflow_socket.stat().st_mode)
    assert stat.S_IMODE(home.run.stat().st_mode) == 0o700


@needs_root
def test_another_account_of_the_machine_cannot_reach_it(served: tuple[Home, Service]) -> None:
    home, _ = served
    assert as_nobody("print(tried(os.listdir, sys.argv[1]))", str(home.root)) == ["done"]
    assert as_nobody(CONNECT, str(home.mlflow_socket)) == ["PermissionError"]


def test_the_exporter_and_the_page_reach_it_and_its_assistant_nobody(
    served: tuple[Home, Service], tmp_path: Path
) -> None:
    home, _ = served
    url = mlflow_url(home)
    tracker = Mlflow(url)
    experiment = tracker.experiment("through the socket")
    tracker.close()
    here = stage(tmp_path, mlflow_url=url)
    with here.client:
        page = here.client.get("/mlflow/")
        assert "<title>MLflow</title>" in page.text
        script = page.text.split('src="')[1].split('"')[0]
        assert here.client.get(f"/mlflow/{script}").status_code == 200
        found = here.client.get(f"/mlflow/ajax-api/2.0/mlflow/experiments/get?experiment_id={experiment}")
        assert found.json()["experiment"]["name"] == "through the socket"
        assert here.client.get("/mlflow/ajax-api/3.0/mlflow/assistant/config").status_code == 404
    way = ClientRoute.to(url)
    lie = {"X-Forwarded-For": "127.0.0.1"}
    with httpx.Client(transport=httpx.HTTPTransport(uds=way.uds), base_url=way.url, timeout=60) as straight:
        asked = {"message": "run it", "provider": "ollama"}
        refused = straight.post("/ajax-api/3.0/mlflow/assistant/message", json=asked, headers=lie)
        assert refused.status_code == 403, "whom MLflow takes for local it runs commands for"
