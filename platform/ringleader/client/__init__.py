"""The SDK: no torch, no ray."""

from ringleader.client.client import Client
from ringleader.client.job import Job
from ringleader.client.records import Event, LogLine, Point, Result, SystemSeries, Worker
from ringleader.client.sweeps import Sweep, Sweeps

__all__ = [
    "Client",
    "Event",
    "Job",
    "LogLine",
    "Point",
    "Result",
    "Sweep",
    "Sweeps",
    "SystemSeries",
    "Worker",
]
