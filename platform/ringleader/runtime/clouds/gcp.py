"""Spot and preemptible machines of Compute Engine: half a minute from the moment the metadata say so.

https://cloud.google.com/compute/docs/instances/spot#preemption-process
"""

import httpx

from ringleader.runtime.clouds.notice import Notice

LEFT_S = 30.0


class Gcp:
    METADATA = "http://metadata.google.internal"
    EVERY_S = 1.0

    def __init__(self, metadata: httpx.Client) -> None:
        self._metadata = metadata

    def notice(self, now: float) -> Notice | None:
        answer = self._metadata.get(
            "/computeMetadata/v1/instance/preempted", headers={"Metadata-Flavor": "Google"}
        )
        if answer.raise_for_status().text.strip() != "TRUE":
            return None
        return Notice("preempted", now + LEFT_S)
