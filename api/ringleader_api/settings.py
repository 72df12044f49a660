"""The control plane's configuration: one frozen model, read from the environment."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from ringleader.errors import RingleaderError
from ringleader.spec.alerts import MAIL
from ringleader.wire.package import MAX_PACKED_BYTES
from ringleader_api.alerting.addresses import Allowed
from ringleader_api.alerting.mail import MailServer, Security
from ringleader_api.scheduling import Limits, Reach

PREFIX = "RINGLEADER_"
# Bounded: sums with a time of day must not overflow, and infinity has no end.
Seconds = Annotated[float, Field(gt=0, le=1e9)]
PauseSeconds = Annotated[float, Field(ge=0, le=1e9)]
KeptDays = Annotated[float, Field(gt=0, le=365_000)]


class SettingsInvalid(RingleaderError):
    """The environment asks for a configuration that cannot be served."""

    code = "settings_invalid"


class Settings(BaseModel):
    """The settings; each field is read from the variable RINGLEADER_<FIELD>.

    Attributes:
        home: the folder of the token, the database, packages and artifacts.
        database_url: `postgresql://user:password@host/name` for several replicas; empty: SQLite in home, for one.
        lease_s: how long a replica that no longer answers keeps the roles that only one replica may have.
        ray_address: the address of the Ray cluster, `host:port`.
        mlflow_url: the URL of MLflow with its static prefix, e.g. `http://127.0.0.1:5000/mlflow`; empty: no tracking.
        mlflow_system: whether MLflow receives system metrics too, those of a job's first 24 nodes and workers.
        host, port: where the API listens; port 0 takes the port used last in this home, or a free one.
        public_url: the URL at which users reach the API; default `http://host:port`.
        allow_remote: must be true to bind to an address other than loopback.
        tick_s: the pause between two rounds of the reconciler when nothing else triggers one.
        vanish_after_s: a supervisor that Ray stopped listing this long ago counts as lost.
        start_timeout_s: an attempt that does not start training within this time has failed.
        silent_after_s: a supervisor that is alive but has posted nothing for this long is reported as silent.
        frozen_after_s: a silent supervisor that has not answered the cluster either for this long is ended, and its
            attempt with it.
        oidc_issuer: the OpenID Connect provider to log in through; empty: users log in with tokens only.
        oidc_client_id, oidc_client_secret: the client's credentials at the provider; a public client has no secret.
        oidc_token_days: the longest lifetime of a token that a user creates after logging in through the provider.
        trusted_proxies: addresses or networks, separated by commas, of the proxies in front of the API; their
            X-Forwarded-For tells where a request came from. Empty: the header is ignored.
        other_hosts: further host names that the API answers to, separated by commas; loopback and the host of
            public_url are always accepted.
        requests_per_s: the sustained rate of requests of one user, with bursts of twice as many; each replica counts
            for itself.
        streams_per_user: the number of event and log streams that one user may have open; each replica counts for
            itself. Never more than an eighth of the file descriptors that the process may have.
        export_every_s: the pause between two exports of new records to MLflow.
        otlp_endpoint: where traces are sent, OTLP over HTTP, e.g. `http://127.0.0.1:4318/v1/traces`; empty: nowhere.
        alert_hosts: internal host names and networks that alerts may be sent to, separated by commas. Empty: public
            addresses only, neither loopback nor private ones.
        alerts_kept_days: how long an alert that was sent or given up stays in the history.
        smtp_host, smtp_port: the mail server for alerts; empty: alerts by mail are refused.
        smtp_security: how the connection to it is encrypted: `starttls`, `tls` from the beginning, or `none`.
        smtp_user, smtp_password: the credentials for it; empty: it requires none.
        smtp_from: the sender address of mails; required with smtp_host.
        jobs_kept_days: how long an ended job and its files are kept before they are deleted; empty: until a user
            deletes them.
        packages_kept_days: how long an uploaded package that no job refers to is kept after its last use.
        packages_per_user, package_bytes_per_user: the most packages that one user may have uploaded, in number and in
            total bytes, whether jobs refer to them or not.
        max_package_bytes: the maximum size of an uploaded package.
        logs_kept, logs_kept_bytes: how much of a job's log is stored: the newest lines, up to this number and this many
            bytes.
        run_as: the account of this machine under which jobs run: one for all, or USER=ACCOUNT separated by commas, with
            * for all other users. Empty: the stack's own account. Only a stack run by root can change accounts.
        run_as_folder: where such jobs write: a folder outside the home that belongs to root and that nodes share.
        allow_faults: whether faults may be injected into jobs whose job file does not allow them.
        warm_per_node: idle worker processes kept ready on each node.
        autoscale_cpus, autoscale_gpus: the size up to which Ray's autoscaler may be asked to grow the cluster, all
            nodes together; 0 and 0: autoscaling is off.
        autoscale_cool_down_s: how long nodes stay requested after nobody needs them any more.
        autoscale_patience_s: how long to wait for requested nodes before they count as unavailable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path
    database_url: Annotated[str, Field(repr=False)] = ""
    lease_s: Seconds = 15.0
    ray_address: str = ""
    mlflow_url: str = ""
    mlflow_system: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    public_url: str = ""
    allow_remote: bool = False
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: Annotated[str, Field(repr=False)] = ""
    oidc_token_days: Annotated[float, Field(gt=0, le=3660)] = 30.0
    trusted_proxies: str = ""
    other_hosts: str = ""
    requests_per_s: Seconds = 1000.0
    streams_per_user: Annotated[int, Field(ge=1)] = 1000
    tick_s: Seconds = 0.3
    vanish_after_s: PauseSeconds = 1.0
    start_timeout_s: Seconds = 300.0
    silent_after_s: Seconds = 15.0
    frozen_after_s: Seconds = 60.0
    export_every_s: Seconds = 1.0
    otlp_endpoint: str = ""
    alert_hosts: str = ""
    alerts_kept_days: Annotated[float, Field(gt=0, le=3660)] = 30.0
    smtp_host: str = ""
    smtp_port: Annotated[int, Field(ge=1, le=65535)] = 587
    smtp_security: Security = "starttls"
    smtp_user: str = ""
    smtp_password: Annotated[str, Field(repr=False)] = ""
    smtp_from: Annotated[str, Field(pattern=rf"{MAIL}|^$")] = ""
    jobs_kept_days: KeptDays | None = None
    packages_kept_days: KeptDays = 1.0
    logs_kept: Annotated[int, Field(ge=1)] = 20_000
    logs_kept_bytes: Annotated[int, Field(ge=1)] = 32 << 20
    packages_per_user: Annotated[int, Field(ge=1)] = 1000
    package_bytes_per_user: Annotated[int, Field(ge=1)] = 10 << 30
    max_package_bytes: Annotated[int, Field(ge=1)] = MAX_PACKED_BYTES
    run_as: str = ""
    run_as_folder: Path | None = None
    allow_faults: bool = False
    warm_per_node: Annotated[int, Field(ge=0)] = 3
    autoscale_cpus: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    autoscale_gpus: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    autoscale_cool_down_s: PauseSeconds = 60.0
    autoscale_patience_s: Seconds = 120.0

    @model_validator(mode="after")
    def _closed_by_default(self) -> Self:
        if not self.allow_remote and not is_loopback(self.host):
            raise ValueError(
                f"RINGLEADER_HOST={self.host} would open the API beyond this machine: use 127.0.0.1, or put a TLS "
                "proxy in front and set RINGLEADER_ALLOW_REMOTE=true"
            )
        if not is_loopback(self.host) and not self.public_url:
            raise ValueError(
                "an API that is open beyond this machine needs a name to answer to: set RINGLEADER_PUBLIC_URL to the "
                "address that users open"
            )
        return self

    @model_validator(mode="after")
    def _known_database(self) -> Self:
        if self.database_url and not self.database_url.startswith(
            ("postgresql://", "postgres://", "sqlite:///")
        ):
            raise ValueError(
                "RINGLEADER_DATABASE_URL must begin with postgresql:// (leave it out to use SQLite)"
            )
        try:
            host = make_url(self.database_url or "sqlite:///").host or ""
        except (ArgumentError, ValueError):  # its words may hold the password
            host = "@"
        # An unescaped @ of a password puts the rest of it into the host.
        if "@" in host:
            raise ValueError(
                "RINGLEADER_DATABASE_URL must have the form postgresql://user:password@host:port/name, with @ : / in "
                "the password written as %40 %3A %2F"
            )
        return self

    @model_validator(mode="after")
    def _whole_provider(self) -> Self:
        if bool(self.oidc_issuer) != bool(self.oidc_client_id):
            raise ValueError("RINGLEADER_OIDC_ISSUER and RINGLEADER_OIDC_CLIENT_ID must be set together")
        issuer = urlsplit(self.oidc_issuer)
        # Discovery over plain http would let anyone on the way choose the keys that tokens are checked against.
        if self.oidc_issuer and issuer.scheme != "https" and not is_loopback(issuer.hostname or ""):
            raise ValueError(f"RINGLEADER_OIDC_ISSUER must be an https address, not {self.oidc_issuer}")
        return self

    @model_validator(mode="after")
    def _named_receivers(self) -> Self:
        try:
            Allowed.of(self.alert_hosts)
        except ValueError as error:
            raise ValueError(
                f"RINGLEADER_ALERT_HOSTS must list names of hosts or networks, separated by commas ({error})"
            ) from None
        if bool(self.smtp_host) != bool(self.smtp_from):
            raise ValueError("RINGLEADER_SMTP_HOST and RINGLEADER_SMTP_FROM must be set together")
        return self

    @model_validator(mode="after")
    def _named_proxies(self) -> Self:
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ValueError(
                    f"RINGLEADER_TRUSTED_PROXIES must list addresses or networks, separated by commas ({error})"
                ) from None
        return self

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read RINGLEADER_<FIELD>; other variables are left alone.

        Raises:
            SettingsInvalid: naming the variable and what is wrong with it.
        """
        # A variable that is set to nothing counts as none.
        given = {f: environ[PREFIX + f.upper()] for f in cls.model_fields if environ.get(PREFIX + f.upper())}
        given.setdefault("home", str(Path.home() / ".ringleader"))
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            found = [
                f"{PREFIX}{e['loc'][0]}".upper() + f": {e['msg']}" if e["loc"] else e["msg"]
                for e in error.errors()
            ]
            raise SettingsInvalid("; ".join(found).replace("Value error, ", "")) from None

    @property
    def url(self) -> str:
        """The address users and links take."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def reach(self) -> Reach | None:
        """The size to which the cluster may grow; None where no autoscaler is asked."""
        grows = self.autoscale_cpus or self.autoscale_gpus
        return Reach(self.autoscale_cpus, self.autoscale_gpus) if grows else None

    @property
    def limits(self) -> Limits:
        """The seconds that a supervisor may be missing, start or be silent."""
        return Limits(self.vanish_after_s, self.start_timeout_s, self.silent_after_s, self.frozen_after_s)

    @property
    def hosts(self) -> frozenset[str]:
        """The names in a Host header, besides loopback, under which requests are meant for us."""
        named = [urlsplit(self.url).hostname or "", *self.other_hosts.split(",")]
        return frozenset(name.strip().lower() for name in named if name.strip())

    @property
    def proxies(self) -> list[str]:
        """The proxies whose X-Forwarded-For is believed."""
        return [proxy.strip() for proxy in self.trusted_proxies.split(",") if proxy.strip()]

    @property
    def mail_server(self) -> MailServer | None:
        """The server that mail goes out through; None: there is none."""
        if not self.smtp_host:
            return None
        return MailServer(
            self.smtp_host,
            self.smtp_port,
            self.smtp_from,
            user=self.smtp_user,
            password=self.smtp_password,
            security=self.smtp_security,
        )

    @property
    def ingest_url(self) -> str:
        """The address supervisors post to: the process itself where it is alone and on loopback."""
        # Behind a public name several replicas may stand, so supervisors post to the name and reach any of them.
        alone = is_loopback(self.host) and not self.database_url
        return f"http://{self.host}:{self.port}" if alone else self.url


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
