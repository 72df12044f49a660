"""What tests of attempts share: one Ray cluster with idle processes, and a control plane that only listens."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.ray_home import IngestServer, ray_head
from integration.runtime_job import write_training

from ringleader.runtime.nodes.cluster import RayCluster
from ringleader.wire.package import pack


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="package")
def cluster(home: Path) -> Iterator[RayCluster]:
    with ray_head(home) as (address, _):
        cluster = RayCluster.connect(address)
        cluster.warm(3)
        yield cluster
        cluster.close()


@pytest.fixture
def ingest(cluster: RayCluster) -> Iterator[IngestServer]:
    server = IngestServer()
    yield server
    print(server.status, *server.every("events"), sep="\n")  # shown where the test fails
    # Those of a test that failed must not take the next one's places.
    for job, attempt in cluster.supervisors():
        cluster.release(job, attempt)
    server.close()


@pytest.fixture
def package(tmp_path: Path) -> bytes:
    folder = tmp_path / "work"
    write_training(folder)
    return pack(folder)
