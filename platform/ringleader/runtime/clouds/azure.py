"""Azure spot machines: an event that names the machine, half a minute or more before.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from email.utils import parsedate_to_datetime

import httpx

from ringleader.runtime.clouds.notice import Notice

HEADERS = {"Metadata": "true"}
LEAVING = ("Preempt", "Terminate")
LEFT_S = 30.0


class Azure:
    METADATA = "http://169.254.169.254"
    # As often as Microsoft's page recommends; half a minute leaves no time to lose.
    EVERY_S = 1.0

    def __init__(self, metadata: httpx.Client) -> None:
        self._metadata = metadata
        self._name = ""

    def notice(self, now: float) -> Notice | None:
        # The events are those of several machines: ours is told by its name.
        if not self._name:
            self._name = self._get("/metadata/instance/compute/name?api-version=2021-02-01&format=text").text
        events = self._get("/metadata/scheduledevents?api-version=2020-07-01").json()["Events"]
        for event in events:
            if event["EventType"] in LEAVING and self._name in event["Resources"]:
                given = event.get("NotBefore")  # empty once it has begun
                at = parsedate_to_datetime(given).timestamp() if given else now + LEFT_S
                return Notice(f"scheduled event: {event['EventType']}", at)
        return None

    def _get(self, path: str) -> httpx.Response:
        return self._metadata.get(path, headers=HEADERS).raise_for_status()
