# Type checkers read this in place of `__init__.py`, whose names are loaded on first use. Imports under TYPE_CHECKING
# there would lead to the engine, and the command line, which stands on the base install, imports the package.
from ringleader import data as data
from ringleader import optim as optim
from ringleader.client import Client as Client
from ringleader.client import Job as Job
from ringleader.errors import JobFailed as JobFailed
from ringleader.spec import JobSpec as JobSpec
from ringleader.train import Session as Session
from ringleader.train import local_session as local_session
from ringleader.train import weights_sha256 as weights_sha256

__version__: str

__all__ = [
    "Client",
    "Job",
    "JobFailed",
    "JobSpec",
    "Session",
    "__version__",
    "local_session",
    "weights_sha256",
]
