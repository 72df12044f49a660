"""EC2 spot instances: two minutes' notice, under a session token.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from datetime import datetime

import httpx

from ringleader.runtime.clouds.notice import Notice

TOKEN_S = 300


class Aws:
    METADATA = "http://169.254.169.254"
    # As often as Amazon's page recommends; the notice comes two minutes ahead.
    EVERY_S = 5.0

    def __init__(self, metadata: httpx.Client) -> None:
        self._metadata = metadata
        self._token = ""

    def notice(self, now: float) -> Notice | None:
        answer = self._get("/latest/meta-data/spot/instance-action")
        # The first question has no token, and a later one may have run out.
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._renew()
            answer = self._get("/latest/meta-data/spot/instance-action")
        # EC2 serves this path only once there is a notice.
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        said = answer.raise_for_status().json()
        return Notice(f"spot instance: {said['action']}", datetime.fromisoformat(said["time"]).timestamp())

    def _get(self, path: str) -> httpx.Response:
        return self._metadata.get(path, headers={"X-aws-ec2-metadata-token": self._token})

    def _renew(self) -> None:
        lives = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        self._token = self._metadata.put("/latest/api/token", headers=lives).raise_for_status().text
