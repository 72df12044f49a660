"""Alerts over SIGKILLs of a real control plane: each arrives, and doubles carry one id."""

from pathlib import Path

from ringleader.bench.control_plane.alerts import alerts_over_kills


def test_no_alert_is_lost_between_event_and_delivery(tmp_path: Path) -> None:
    found = alerts_over_kills(tmp_path / "home", 12, 3, seed=7, ordinary=1)
    assert (found.arrived, found.foreign) == (12, 0)
