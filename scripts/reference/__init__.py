"""The reference in docs/reference/, written from the code: one module a page, one function a page."""

from collections.abc import Callable

from reference.cli import cli_page
from reference.codes import codes_page
from reference.environment import environment_page
from reference.events import events_page
from reference.job_file import job_file_page
from reference.markdown import page
from reference.metrics import metrics_page
from reference.rest import rest_page
from reference.session import sdk_page, session_page

PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "session.md": ("what a training function uses", session_page),
    "job-file.md": ("every key with its values and default, and what goes with which mode", job_file_page),
    "cli.md": ("the commands of `ringleader`", cli_page),
    "sdk.md": ("the client for scripts and notebooks", sdk_page),
    "rest.md": ("operations and shapes", rest_page),
    "events.md": ("what a job's history says, field by field", events_page),
    "metrics.md": ("of the control plane, and of a job", metrics_page),
    "codes.md": ("of errors, of reasons for failing and waiting, and the states of a job", codes_page),
    "environment.md": ("every variable that is read", environment_page),
}
"""By file name: what the page is about, and the function that writes it."""
LEAD = """What the code says, written from it: `make docs` writes these pages anew, and a test fails where they are
not what the code says now."""


def pages() -> dict[str, str]:
    """Every page by file name, with their index."""
    texts = {name: write() for name, (_, write) in PAGES.items()}
    lines = [
        f"- [{texts[name].splitlines()[0].removeprefix('# ')}]({name}): {about}"
        for name, (about, _) in PAGES.items()
    ]
    return {"index.md": page("Reference", LEAD, "\n".join(lines)), **texts}
