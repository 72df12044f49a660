"""The machine accounts that users' jobs run under: the operator's table, never a submitter's choice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.accounts import EVERYBODY, Account, RunAs, accounts_of, owner_only
from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader.wire.states import Reason
from ringleader_api.settings import Settings, SettingsInvalid


class NoAccount(RingleaderError):
    """The user's jobs have no account to run under, or ask for something that the account does not have."""

    code = Reason.PLATFORM_ERROR


@dataclass(frozen=True, slots=True)
class Accounts:
    """The table of accounts. Empty: all jobs run under the stack's own.

    Attributes:
        folder: below which jobs write.
    """

    table: Mapping[str, Account] = field(default_factory=dict)
    folder: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> "Accounts":
        """The table from the settings. Raises RunAsImpossible, SettingsInvalid: not on this machine."""
        table, folder = accounts_of(settings.run_as), settings.run_as_folder
        if not table and folder is None:
            return cls()
        if not table:
            raise SettingsInvalid(
                "RINGLEADER_RUN_AS_FOLDER has no effect without RINGLEADER_RUN_AS: set both or neither"
            )
        # Apart from the home, which is closed to those accounts: nothing below it could be reached.
        if folder is None or not folder.is_absolute() or folder.is_relative_to(settings.home.resolve()):
            raise SettingsInvalid(
                "RINGLEADER_RUN_AS needs RINGLEADER_RUN_AS_FOLDER, an absolute path outside RINGLEADER_HOME that "
                "jobs write to",
                hint="On a single machine, /var/lib/ringleader-jobs will do; several nodes have to share the folder.",
            )
        if settings.home.stat().st_mode & 0o077:
            raise SettingsInvalid(
                f"{settings.home} is open to other accounts, and jobs run under such accounts: run chmod 700 on it"
            )
        owner_only(folder)
        return cls(table, folder)

    def run_as(self, owner: str, spec: JobSpec) -> RunAs | None:
        """The account and folder for a job of this user; None: the stack's own account. Raises NoAccount."""
        if not self.table or self.folder is None:
            return None
        account = self.table.get(owner) or self.table.get(EVERYBODY)
        if account is None:
            raise NoAccount(
                f"jobs run under separate machine accounts here, and the user {owner} has no account.",
                hint="Ask the operator of the control plane to add an account to RINGLEADER_RUN_AS.",
            )
        uri = spec.checkpoint.uri
        # Object stores are reached with the credentials of the nodes, which the account of a job does not have.
        if uri is not None and "://" in uri and not uri.startswith("file://"):
            raise NoAccount(
                f"checkpoint.uri {uri} cannot be used: jobs run under separate machine accounts here, which do not "
                "have the nodes' credentials for object stores.",
                hint=f"Leave checkpoint.uri out, or name a folder that the account {account.name} can write to.",
            )
        return RunAs(account, self.folder)


OWN = Accounts()
