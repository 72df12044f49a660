"""The clouds whose notices are understood, by name. A new one is a new file and a line here."""

from ringleader.runtime.clouds import aws, azure, gcp
from ringleader.runtime.clouds.notice import Cloud, Notice

CLOUDS: dict[str, type[Cloud]] = {"aws": aws.Aws, "azure": azure.Azure, "gcp": gcp.Gcp}

__all__ = ["CLOUDS", "Cloud", "Notice"]
