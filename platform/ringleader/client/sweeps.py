"""Sweeps, seen through the REST API."""

import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from ringleader.client.http import Api, over_at
from ringleader.errors import RingleaderError, WaitTimeout
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import with_framework
from ringleader.spec.sweep import SweepSpec
from ringleader.spec.working_dir import JobFileWarning, check_working_dir, root_of
from ringleader.wire import package
from ringleader.wire.sweeps import SweepPage, SweepPreview, SweepView, TrialView

SweepFile = str | Path | Mapping[str, Any]
_POLL_S = 0.5


class NoSuchSweep(RingleaderError):
    """No sweep matches, or several do."""

    code = "sweep_not_found"


class Sweep:
    """A handle on a sweep. `view` is the sweep as last seen; `refresh` looks again."""

    def __init__(self, api: Api, view: SweepView) -> None:
        self._api = api
        self.view = view

    def __repr__(self) -> str:
        return f"Sweep({self.id!r}, {self.view.name!r}, {self.view.state})"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def url(self) -> str:
        """The sweep's page."""
        return f"{self._api.url.rstrip('/')}/sweeps/{self.id}"

    def refresh(self) -> Self:
        self.view = SweepView.model_validate(self._api.get(f"/sweeps/{self.id}"))
        return self

    def trials(self) -> list[TrialView]:
        """All trials, the best first: those that have come furthest, by their last score."""
        found = [TrialView.model_validate(one) for one in self._api.get(f"/sweeps/{self.id}/trials")["items"]]
        sign = -1 if self.view.spec["metric"].get("goal") == "maximize" else 1

        def rank(one: TrialView) -> tuple[int, float, int]:
            return -len(one.scores), sign * one.scores[-1] if one.scores else 0.0, one.number

        return sorted(found, key=rank)

    def best(self) -> TrialView | None:
        """The leading trial; of an ended sweep its winner."""
        return next((one for one in self.trials() if one.number == self.view.best), None)

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the sweep has ended.

        Raises:
            WaitTimeout: it has not ended in so many seconds. It goes on.
        """
        for _ in self.watch(timeout):
            pass
        return self

    def watch(self, timeout: float | None = None) -> Iterator[SweepView]:
        """The sweep as it is now, again and again until it has ended.

        Raises:
            WaitTimeout: as `wait`.
        """
        give_up_at = over_at(timeout)
        while True:
            yield self.refresh().view
            if self.view.state.ended:
                return
            if give_up_at is not None and time.monotonic() + _POLL_S > give_up_at:
                raise WaitTimeout(
                    f"sweep {self.id} is still {self.view.state} after {timeout:g} s.",
                    hint="It goes on; wait again, or cancel it.",
                )
            time.sleep(_POLL_S)

    def pause(self) -> Self:
        """Pause its jobs; none is submitted until it is resumed."""
        return self._ask("pause")

    def resume(self) -> Self:
        """Go on with what was paused."""
        return self._ask("resume")

    def cancel(self) -> Self:
        """End it and its jobs; cancelling twice is cancelling once."""
        return self._ask("cancel")

    def _ask(self, how: str) -> Self:
        answer = self._api.request("POST", f"/sweeps/{self.id}/{how}", repeatable=True)
        self.view = SweepView.model_validate(answer.json())
        return self


class Sweeps:
    """The sweeps of one control plane. `upload` sends a package and returns its name."""

    def __init__(self, api: Api, upload: Callable[[bytes], str]) -> None:
        self._api = api
        self._upload = upload

    def submit(self, source: SweepFile, working_dir: str | Path | None = None) -> Sweep:
        """As `Client.sweep`."""
        # One key for all tries of this call: the control plane makes one sweep of them.
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        body = self._uploaded(source, working_dir)
        answer = self._api.request("POST", "/sweeps", json=body, headers=headers, repeatable=True)
        return Sweep(self._api, SweepView.model_validate(answer.json()))

    def preview(self, source: SweepFile, working_dir: str | Path | None = None) -> SweepPreview:
        """Check a sweep and its first trial without making it."""
        body = self._uploaded(source, working_dir)
        answer = self._api.request("POST", "/sweeps", json=body, params={"dry_run": "true"}, repeatable=True)
        return SweepPreview.model_validate(answer.json())

    def all(self) -> Iterator[Sweep]:
        """All sweeps, newest first."""
        for page in map(SweepPage.model_validate, self._api.pages("/sweeps", {"limit": 100})):
            for view in page.items:
                yield Sweep(self._api, view)

    def find(self, text: str) -> Sweep:
        """The newest sweep of this name, or the one whose id begins so.

        Raises:
            NoSuchSweep: there is none, or several ids begin so.
        """
        found = list(self.all())
        if named := [one for one in found if one.view.name == text]:
            return named[0]
        begun = [one for one in found if one.id.startswith(text.rstrip("…"))]
        if len(begun) != 1:
            raise NoSuchSweep(
                f"{text!r} is the name, the ID or the beginning of an ID of {len(begun) or 'no'} sweeps.",
                hint="List the sweeps with `ringleader sweeps`.",
            )
        return begun[0]

    def _uploaded(self, source: SweepFile, working_dir: str | Path | None) -> dict[str, Any]:
        """The request body, the template's working directory replaced by the uploaded package's digest."""
        if isinstance(source, Mapping):
            spec, base = SweepSpec.beside(Path.cwd(), dict(source))
        else:
            spec, base = SweepSpec.load(Path(source))
        job = JobSpec.parse(spec.job_file(0, {}))
        root = root_of(job, base, working_dir)
        chosen = with_framework(job, root)
        for remark in check_working_dir(chosen, root, base):
            warnings.warn(remark, JobFileWarning, stacklevel=4)  # where sweep or preview is called
        template: dict[str, Any] = dict(spec.template)
        if chosen is not job:
            template |= {"framework": chosen.framework, "framework_why": chosen.framework_why}
        if root is not None:
            template["working_dir"] = self._upload(package.pack(root))
        body = spec.model_dump(mode="json", exclude_unset=True)
        return {**body, "template": {key: value for key, value in template.items() if value is not None}}
