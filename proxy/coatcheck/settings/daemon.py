"""Settings of the daemon: `COATCHECK_…` variables and one TOML file. The only reader of the environment.

Each has a unit, a default and a reason; unknown keys are errors. What a *team* may do is policy, not a
setting.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from coatcheck.decision.address import parse_networks
from coatcheck.decision.host import split_authority
from coatcheck.platform.web_url import is_web_url
from coatcheck.settings import places
from coatcheck.settings.page import PageSettings
from coatcheck.settings.shared_state import GONE, SharedStateSettings

PREFIX = "COATCHECK_"


def surroundings() -> places.Surroundings:
    """What the default places follow from, as this process has it."""
    try:
        home: Path | None = Path.home()
    except RuntimeError:  # a user id without an entry, as containers have it
        home = None
    try:
        directory = Path.cwd()
    except OSError:  # it was removed under us
        directory = Path("/")
    return places.Surroundings(dict(os.environ), home, directory, Path(sys.prefix).parent)


class Settings(PageSettings, SharedStateSettings, BaseSettings):
    """Everything that differs from one deployment to the next."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True, env_nested_delimiter=None
    )

    # --- where things are ---
    state_dir: Path = Field(
        default_factory=lambda: places.state_directory(surroundings()),
        description="Directory for keys, sessions, the CA and the audit log. Must be private (mode 0700)."
        " Default: `coatcheck` in XDG_STATE_HOME or ~/.local/state; under systemd, the unit's"
        " StateDirectory, /var/lib/coatcheck.",
    )
    runtime_dir: Path | None = Field(
        default_factory=lambda: places.runtime_directory(surroundings()),
        description="Directory for sockets. Default: `run` in the state directory; under systemd, the unit's"
        " RuntimeDirectory, /run/coatcheck.",
    )
    policy: Path = Field(
        default_factory=lambda: places.policies(surroundings()),
        description="Directory of policy files, or a single policy file. Default: the first of"
        " `coatcheck/policies` in XDG_CONFIG_HOME or ~/.config, `policies` in the current directory, and"
        " the sample policy; under systemd only /etc/coatcheck/policies.",
    )
    policy_trust_root: Path | None = Field(
        None,
        description="PEM file with the public keys that may sign policy bundles. When set, `policy` must name"
        " a signed bundle, no other file is read, and an older version than one already used is"
        " refused.",
    )
    policy_observe: str | None = Field(
        None,
        min_length=10,
        max_length=200,
        description="Reason for allowing policies with `observe` on this daemon (10 to 200 characters, kept"
        " in the audit log). Requests that no rule allows then leave without credentials. Unset: a"
        " policy with `observe` is refused.",
    )
    shadow_policy: Path | None = Field(
        None,
        description="Candidate policies that are evaluated for each request and have no effect on it: a"
        " directory or a bundle replaces all policies, a single file replaces the policy of the"
        " same name.",
    )

    # --- listeners ---
    proxy_host: str = Field("127.0.0.1", description="Address of the shared proxy listener.")
    proxy_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the shared proxy listener. Unset: there is no shared listener, and each session"
        " has its own.",
    )
    proxy_share_port: bool = Field(
        False,
        description="Allow other daemons on this host to listen on the same port (SO_REUSEPORT). Used while a"
        " daemon is replaced.",
    )
    proxy_trust_addresses: bool = Field(
        False,
        description="Identify sandboxes by source address on this listener (origin class `address`). Turn it"
        " on only where no sandbox can spoof its address.",
    )
    transparent_hosts: tuple[str, ...] = Field(
        ("127.0.0.1",),
        description="Addresses of the transparent listener and of the DNS listener. Use the addresses of the"
        " interfaces that redirected connections arrive on.",
    )
    transparent_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for connections that a firewall redirects from clients without proxy settings."
        " Unset: no transparent mode.",
    )
    transparent_trust_addresses: bool = Field(
        False,
        description="Identify redirected sandboxes by source address (origin class `address`, written"
        " `transparent|ADDRESS`). Transparent mode requires it, because such clients can present"
        " nothing else. Turn it on only where no sandbox can spoof its address.",
    )
    dns_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="UDP and TCP port of the resolver for redirected sandboxes. It answers A and AAAA queries"
        " with synthetic addresses and never forwards a query. Unset: no resolver.",
    )
    proxy_tls_certificate: Path | None = Field(
        None,
        description="PEM file with the certificate and key of the shared listener, or a directory with"
        " `tls.crt` and `tls.key`; read again when it changes. Together with `proxy_client_ca` it enables"
        " origin class `mtls`.",
    )
    proxy_client_ca: Path | None = Field(
        None, description="PEM file with the CAs that sign sandboxes' client certificates."
    )
    token_jwks_file: Path | None = Field(
        None,
        description="JWKS file of the platform that issues sandboxes' tokens; read again when it changes."
        " Enables origin class `token`: the sandbox sends `Proxy-Authorization: Bearer <jwt>`, or"
        " the token as the Basic password.",
    )
    token_jwks_url: str | None = Field(
        None,
        description="URL of the same, instead of a file: the cluster's own"
        " (`https://kubernetes.default.svc/openid/v1/jwks`) or a public issuer's. Read at the start, every"
        " five minutes, and when a token names a new key. While it cannot be read, known keys count for an"
        " hour.",
    )
    token_jwks_ca_file: Path | None = Field(
        None, description="CA certificates for `token_jwks_url`. Default: the public ones of certifi."
    )
    token_jwks_bearer_file: Path | None = Field(
        None,
        description="File with a bearer token for `token_jwks_url`, read before each use. A cluster gives its"
        " keys to service accounts only.",
    )
    token_issuer: str | None = Field(
        None, description="Required `iss` claim of sandboxes' tokens, compared exactly."
    )
    token_audience: str | None = Field(
        None,
        description="Required `aud` claim of sandboxes' tokens. It must be the only audience: another"
        " recipient of a shared token could replay it.",
    )
    control_socket: Path | None = Field(
        None, description="Unix socket of the control API. Default: `control.sock` in the runtime directory."
    )
    control_uids: tuple[int, ...] = Field(
        (),
        description="User ids that may use the control API over the socket with every grant, in addition to"
        " the daemon's own.",
    )
    control_host: str = Field("127.0.0.1", description="Address of the control API over TCP.")
    control_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the control API over TCP, which also serves the web page. Unset: Unix socket"
        " only, no page.",
    )
    control_grants: Path | None = Field(
        None,
        description="TOML file that maps callers to grants: who may open which sessions, revoke, approve, or"
        " read.",
    )
    control_tls_certificate: Path | None = Field(
        None,
        description="PEM file with the certificate and key of the control API over TCP, or a directory with"
        " `tls.crt` and `tls.key`; read again when it changes. Required on any address that is not loopback.",
    )
    control_client_ca: Path | None = Field(
        None,
        description="PEM file with the CAs that sign callers' client certificates. When set, callers may"
        " authenticate by mTLS.",
    )
    control_names: tuple[str, ...] = Field(
        (),
        description="Additional names accepted in the Host header of the control API over TCP, besides"
        " localhost and `control_host`.",
    )

    # --- Vault ---
    vault_url: str | None = Field(
        None, description="URL of Vault or OpenBao (`https://…`). Unset: no Vault store."
    )
    vault_ca_file: Path | None = Field(
        None,
        description="PEM file with the CAs that Vault's certificate may chain to. Unset: the public CAs.",
    )
    vault_namespace: str | None = Field(
        None, description="Namespace in Vault Enterprise or OpenBao. Unset: the root namespace."
    )
    vault_login: Literal["token", "approle", "jwt", "kubernetes"] = Field(
        "token", description="How the daemon logs in to Vault."
    )
    vault_token: SecretStr | None = Field(
        None,
        description="Vault token for `vault_login=token`. Prefer `vault_token_file`: the environment of a"
        " process is easier to read.",
    )
    vault_token_file: Path | None = Field(
        None, description="File with the Vault token for `vault_login=token`; read again at each login."
    )
    vault_role: str = Field("coatcheck", description="Vault role for `vault_login=jwt` and `kubernetes`.")
    vault_role_id: str = Field("", description="Role ID for `vault_login=approle`.")
    vault_secret_id_file: Path | None = Field(
        None, description="File with the secret ID for `vault_login=approle`; read again at each login."
    )
    vault_jwt_file: Path | None = Field(
        None,
        description="File with the JWT for `vault_login=jwt` and `kubernetes`; read again at each login.",
    )
    vault_mount: str | None = Field(
        None, description="Mount path of the login method in Vault. Unset: the method's default path."
    )
    vault_timeout: float = Field(
        5.0, gt=0, description="Time limit for one complete answer of Vault, in seconds."
    )
    secrets_dir: Path | None = Field(
        None,
        description="Directory with one file per secret, for `file:` references in policies. Unset: no file"
        " store.",
    )
    secret_ttl: float = Field(
        60.0,
        gt=0,
        description="How long a secret is cached, in seconds. A rotated secret is in use after at most this"
        " long.",
    )
    secret_max_stale: float = Field(
        300.0,
        ge=0,
        description="How long after its TTL a cached secret may still be used while Vault cannot be reached,"
        " in seconds. 0: never.",
    )

    # --- upstream ---
    upstream_ca_file: Path | None = Field(
        None,
        description="PEM file with the CAs that upstream certificates may chain to. Unset: the public CAs.",
    )
    allowed_networks: tuple[str, ...] = Field(
        (),
        description="Private address ranges (CIDR) that sandboxes may reach. Cloud metadata addresses are"
        " never allowed.",
    )
    connect_to: dict[str, str] = Field(
        {},
        description="Addresses to dial instead of resolving a name: `host:port` to `address:port`, like"
        " curl's --connect-to. The certificate is still verified for the name.",
    )
    name_servers: tuple[str, ...] = Field(
        (), description="DNS servers for resolving upstream names. Unset: the system's resolvers."
    )
    parent_proxy: str | None = Field(
        None,
        description="Corporate proxy (`http://host:port`) for all upstream connections except those in"
        " `connect_to`. The proxy resolves names, so Coatcheck cannot screen upstream addresses.",
    )
    parent_proxy_credentials: Path | None = Field(
        None,
        description="File with `user:password` for the parent proxy, mode 0600; read for each connection.",
    )

    # --- sessions ---
    session_max_age: float = Field(
        43_200,
        gt=0,
        description="Maximum age of a session, in seconds. The default is 12 hours, a working day.",
    )
    session_lease: float = Field(
        120,
        gt=0,
        description="Default lease of a session, in seconds. Handles stop working at most this long after a"
        " sandbox is gone.",
    )
    refuse_inside_tls: bool = Field(
        False,
        description="Answer a CONNECT to a host that no rule allows inside TLS, with a certificate for that"
        " host: most clients show that answer, and not the one that refuses a CONNECT. Nothing is resolved"
        " or connected to. Default: CONNECT itself is refused.",
    )
    session_ca: bool = Field(
        False,
        description="Give each session with its own listener its own CA, kept in memory only. Sessions then"
        " need new trust files after a restart of the daemon. Default: one CA for all, which is"
        " simpler for a fleet.",
    )
    max_sessions: int = Field(
        10_000, gt=0, description="Maximum number of live sessions. Each takes 2 to 10 KiB of memory."
    )

    # --- what one sandbox may take at most; the defaults are in `sandbox/limits.py` ---
    sandbox_max_memory: int = Field(
        8192,
        ge=64,
        description="Most memory that one sandbox may be given, in MiB. The default fits two builds of a"
        " large project.",
    )
    sandbox_max_cpus: int = Field(
        4, ge=1, description="Most CPUs that one sandbox may be given. More than the host has only share it."
    )
    sandbox_max_processes: int = Field(
        4096, ge=8, description="Most processes that one sandbox may run at once. A browser takes hundreds."
    )
    sandbox_max_disk: int = Field(
        32_768, ge=16, description="Largest writable disk of one sandbox (root overlay and home), in MiB."
    )
    sandbox_max_output: int = Field(
        1024, ge=1, description="Most output of one command that is passed on to its caller, in MiB."
    )
    sandbox_max_network: int = Field(
        1024,
        ge=1,
        description="Highest network rate of one sandbox, both directions together, in MiB per second.",
    )
    sandbox_max_run: int = Field(
        43_200,
        ge=1,
        description="Longest run time of one sandbox, in seconds. The default equals the default maximum age"
        " of a session.",
    )

    cache_dir: Path | None = Field(
        None,
        description="Directory for files that can be rebuilt: guest images and the guest agent. Default:"
        " `coatcheck` in XDG_CACHE_HOME or ~/.cache.",
    )
    max_sandboxes: int = Field(
        16,
        ge=0,
        description="Maximum number of sandboxes that run at once. Each needs its own memory and about 60 MiB"
        " more.",
    )
    max_kept_sandboxes: int = Field(
        256,
        ge=0,
        description="Maximum number of sandboxes that run, sleep, or exist only as snapshots. The saved ones"
        " use disk space for their memory and disks.",
    )
    sandbox_sleep_seconds: float = Field(
        60,
        ge=0,
        description="How long an orderly stop of the daemon waits for sandboxes to be put to sleep, in"
        " seconds. Sandboxes still awake then are terminated.",
    )
    recover_sandboxes: bool = Field(
        True,
        description="Restore sandboxes that died unexpectedly, where their lifecycle asks for it. Turn it off"
        " to investigate an incident.",
    )
    max_snapshots: int = Field(
        10, ge=1, description="Maximum number of snapshots of one sandbox. Further snapshots are refused."
    )
    snapshot_reserve: int = Field(
        512,
        ge=64,
        description="Disk space that snapshots must leave free in the state directory, in MiB. The default"
        " holds two audit log files; without room for the audit log no request leaves.",
    )
    max_sandboxes_per_caller: int = Field(
        8, ge=0, description="Maximum number of sandboxes that one caller may run at once."
    )
    sandbox_total_memory: int | None = Field(
        None,
        ge=64,
        description="Total memory that sandboxes may grow to together, in MiB. Default: three quarters of the"
        " machine's memory; the rest is for QEMU, the daemon and the disk cache.",
    )

    # --- sandboxes that stand by, booted and nobody's; docs/sandboxes.md ---
    warm_pool: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of sandboxes that are kept booted and unclaimed, so that a start takes"
        " milliseconds. Each holds its memory from its boot on.",
    )
    warm_pool_backend: Literal["microvm", "namespace"] | None = Field(
        None,
        description="Backend of warm sandboxes. Default: the backend that is used when a request names none.",
    )
    warm_pool_image: str | None = Field(None, description="Image of warm sandboxes. Default: `default`.")
    warm_pool_memory: int | None = Field(
        None,
        description="Memory of a warm sandbox, in MiB. Requests for another size boot a new sandbox. Default:"
        " a sandbox's default.",
    )
    warm_pool_cpus: int | None = Field(
        None, description="CPUs of a warm sandbox. Default: a sandbox's default."
    )
    warm_pool_disk: int | None = Field(
        None, description="Disk of a warm sandbox, in MiB. Default: a sandbox's default."
    )
    warm_pool_age: float = Field(
        3600,
        ge=1,
        description="Age at which a warm sandbox is replaced by a newly booted one, in seconds.",
    )

    # --- telling ---
    webhook_url: str | None = Field(
        None,
        description="URL that receives signed events: changes of sandboxes, and requests that wait for"
        " approval. See docs/control-api.md.",
    )
    webhook_secret_file: Path | None = Field(
        None,
        description="File with the secret that signs what the webhook gets (Standard Webhooks): `whsec_` and"
        " a key in base64, or the key itself, at least 16 bytes. Mode 0600; read again for each event.",
    )
    otel_endpoint: str | None = Field(
        None,
        description="URL of an OpenTelemetry collector, `http(s)://host:port`. Data is sent as OTLP over HTTP"
        " to /v1/traces and /v1/logs. Needs the extra `otel`. OTEL_… variables are not read.",
    )
    otel_headers_file: Path | None = Field(
        None,
        description="File with additional headers for the collector, one `Name: value` per line, mode 0600;"
        " read for each batch.",
    )
    otel_ca_file: Path | None = Field(
        None,
        description="PEM file with the CAs that the collector's certificate may chain to. Unset: the public"
        " CAs.",
    )
    otel_signals: tuple[Literal["traces", "logs"], ...] = Field(
        ("traces", "logs"), min_length=1, description="Signals that are sent to the collector."
    )
    otel_attributes: dict[str, str] = Field(
        {},
        description="Additional resource attributes, such as `deployment.environment.name`. Do not put"
        " secrets here.",
    )
    log_format: Literal["human", "json"] = Field("human", description="Format of the log on stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is written to stderr."
    )
    audit_checkpoints: Path | None = Field(
        None,
        description="Second file for signed checkpoints of the audit log. Put it on another disk or host, so"
        " that truncation of the log is detected.",
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="How long requests and streams may go on after SIGTERM, in seconds."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _named(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        if value == "" and field.annotation in (Path, Path | None):
            raise ValueError("it is empty: name a path, or leave it unset")  # Path("") would be `.`
        return value

    @field_validator("*")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        """A path means the same wherever it is used: here, in a child, in a sandbox's variables."""
        if not isinstance(value, Path):
            return value
        try:
            return value.expanduser().absolute()
        except RuntimeError:
            raise ValueError("its ~ cannot be resolved: write the path in full") from None
        except OSError:
            raise ValueError("the current directory is gone: write the path in full") from None

    @field_validator("allowed_networks")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value

    @field_validator("parent_proxy")
    @classmethod
    def _parent(cls, value: str | None) -> str | None:
        if value is not None:
            parse_parent_proxy(value)
        return value

    def _platform(self) -> None:
        if self.token_jwks_file is not None and self.token_jwks_url is not None:
            raise ValueError("token_jwks_file and token_jwks_url are both set: leave one out")
        tokens = (self.token_jwks_file or self.token_jwks_url, self.token_issuer, self.token_audience)
        if len({value is None for value in tokens}) > 1:
            raise ValueError(
                "token_jwks_file (or token_jwks_url), token_issuer and token_audience belong together:"
                " all or none"
            )
        if self.token_jwks_url is None and (self.token_jwks_ca_file or self.token_jwks_bearer_file):
            raise ValueError("token_jwks_ca_file and token_jwks_bearer_file need token_jwks_url")
        if self.token_jwks_url is not None and not is_web_url(self.token_jwks_url, ("https",)):
            raise ValueError("token_jwks_url must look like https://host/path")

    @model_validator(mode="after")
    def _together(self) -> "Settings":
        if (self.webhook_url is None) != (self.webhook_secret_file is None):
            raise ValueError("webhook_url and webhook_secret_file belong together: set both or neither")
        if self.webhook_url is not None and not is_web_url(self.webhook_url):
            raise ValueError("webhook_url must look like https://host/path")
        self._collector()
        if self.parent_proxy_credentials is not None and self.parent_proxy is None:
            raise ValueError("parent_proxy_credentials has no effect without parent_proxy")
        if (self.proxy_client_ca is None) != (self.proxy_tls_certificate is None):
            raise ValueError("proxy_tls_certificate and proxy_client_ca belong together: set both or neither")
        self._platform()
        if self.token_issuer is not None and "|" in self.token_issuer:
            raise ValueError("token_issuer must not hold `|`: an origin is written `issuer|pod uid`")
        if self.transparent_port is not None and not self.transparent_trust_addresses:
            raise ValueError(
                "transparent_port has no effect without transparent_trust_addresses: nothing but a source"
                " address tells sandboxes apart there. Set it where none can be spoofed"
            )
        if not self.transparent_hosts:
            raise ValueError("transparent_hosts must name at least one address")
        if self.control_client_ca is not None and self.control_tls_certificate is None:
            raise ValueError("control_client_ca has no effect without control_tls_certificate: set both")
        if (
            self.control_port is not None
            and self.control_tls_certificate is None
            and self.control_host not in ("127.0.0.1", "::1")
        ):
            raise ValueError(
                "control_host is not a loopback address, so tokens would cross a network in the clear: "
                "set control_tls_certificate, or use 127.0.0.1 or ::1"
            )
        return self

    def _collector(self) -> None:
        if self.otel_endpoint is None:
            if self.otel_headers_file is not None or self.otel_ca_file is not None:
                raise ValueError("otel_headers_file and otel_ca_file have no effect without otel_endpoint")
            return
        if not is_web_url(self.otel_endpoint) or "?" in self.otel_endpoint:
            raise ValueError(
                "otel_endpoint must look like https://host:4318, without user, query or /v1/traces"
            )
        parts = urlsplit(self.otel_endpoint)
        if parts.path.endswith(("/v1/traces", "/v1/logs")):
            raise ValueError("otel_endpoint is the base: leave /v1/traces and /v1/logs away")
        if (
            self.otel_headers_file is not None
            and parts.scheme == "http"
            and parts.hostname not in ("127.0.0.1", "::1", "localhost")
        ):
            raise ValueError("otel_headers_file would cross a network in the clear: use https, or loopback")

    @property
    def runtime(self) -> Path:
        return self.runtime_dir or self.state_dir / "run"

    @property
    def cache(self) -> Path:
        if self.cache_dir is not None:
            return self.cache_dir
        return places.cache_directory(surroundings())

    @property
    def control(self) -> Path:
        return self.control_socket or self.runtime / "control.sock"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = os.environ.get(PREFIX + "CONFIG")
        toml = (TomlConfigSettingsSource(settings_cls, Path(file)),) if file else ()
        return (init_settings, env_settings, *toml)


def parse_parent_proxy(url: str) -> tuple[str, int]:
    """Host and port of `http://host:port`. ValueError for anything else; credentials belong in a file."""
    scheme, _, authority = url.removesuffix("/").partition("://")
    if scheme != "http" or "@" in authority:
        raise ValueError("write it as http://host:port, and credentials into parent_proxy_credentials")
    return split_authority(authority, None)


class UnknownSetting(ValueError):
    """A `COATCHECK_…` variable that is no setting: a typo would silently leave a default in force."""


def load(**overrides: Any) -> Settings:
    """The settings from the command line, the environment and the file, in that order of strength.

    Raises UnknownSetting, pydantic.ValidationError, or OSError when COATCHECK_CONFIG names no file.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {PREFIX + "CONFIG"}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            gone = GONE.get(name.removeprefix(PREFIX).lower())
            if gone is not None:
                raise UnknownSetting(gone)
            raise UnknownSetting(f"{name} is not a Coatcheck setting; see `coatcheck serve --help`")
    file = os.environ.get(PREFIX + "CONFIG")
    if file and not Path(file).is_file():
        raise FileNotFoundError(f"COATCHECK_CONFIG names {file}, which is not a file")
    return Settings(**overrides)


def runs_directory() -> Path:
    """Where the audit logs of daemons are kept that lived for one command."""
    return places.runs_directory(surroundings())


def how_to_move(settings: Settings) -> str | None:
    """The command that moves a state directory from its earlier default place; None: it is not there."""
    return places.how_to_move(settings.state_dir, surroundings())


def process_environment() -> Mapping[str, str]:
    """The environment for children that are the user's own command (`coatcheck run`)."""
    return dict(os.environ)


def notify_socket() -> str | None:
    """systemd's readiness socket, if it started us."""
    return os.environ.get("NOTIFY_SOCKET")
