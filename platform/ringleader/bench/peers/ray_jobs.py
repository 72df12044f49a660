"""Ray Jobs: so many submissions through so many clients at once; prints how many a second were taken.

Settings: a local cluster of its own with its dashboard, no runtime environment, an entrypoint that does nothing, a
`JobSubmissionClient` for each client.
"""

import argparse
import json
import tempfile

from ringleader.bench.children import die_with_parent
from ringleader.bench.crowd import at_once


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("clients", "each", "runs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asked = parser.parse_args()
    import ray
    from ray.job_submission import JobSubmissionClient

    with tempfile.TemporaryDirectory(prefix="rj", ignore_cleanup_errors=True) as folder:
        told = ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=True,
            object_store_memory=150_000_000,
            _temp_dir=f"{folder}/ray",
            log_to_driver=False,
        )
        try:
            address = f"http://{told.address_info['webui_url']}"
            clients = [JobSubmissionClient(address) for _ in range(asked.clients)]
            clients[0].submit_job(entrypoint="true")

            def submit(number: int) -> None:
                for _ in range(asked.each):
                    clients[number].submit_job(entrypoint="true")

            for _ in range(asked.runs):
                took_s = at_once(asked.clients, submit)
                print(json.dumps({"per_s": asked.clients * asked.each / took_s}), flush=True)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    die_with_parent()
    main()
