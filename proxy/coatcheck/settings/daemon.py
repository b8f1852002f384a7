"""Settings of the daemon: `COATCHECK_…` variables and one TOML file. The only reader of the environment.

Each has a unit, a default and a reason; unknown keys are errors. What a *team* may do is policy, not a
setting.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from coatcheck.decision.address import parse_networks
from coatcheck.decision.host import split_authority
from coatcheck.platform.web_url import is_web_url
from coatcheck.settings.page import PageSettings
from coatcheck.settings.shared_state import SharedStateSettings

PREFIX = "COATCHECK_"


class Settings(PageSettings, SharedStateSettings, BaseSettings):
    """Everything that differs from one deployment to the next."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True, env_nested_delimiter=None
    )

    # --- where things are ---
    state_dir: Path = Field(Path("var/coatcheck"), description="Keys, sessions, CA and audit log; 0700.")
    runtime_dir: Path | None = Field(
        None, description="Sockets. Default: `run` below the state directory; systemd gives /run/coatcheck."
    )
    policy: Path = Field(Path("policies"), description="Directory of policy files, or one file.")
    policy_trust_root: Path | None = Field(
        None,
        description="PEM file of the public keys that sign policy bundles; with it `policy` names a bundle,"
        " nothing else is read, and no version older than one that was in force.",
    )
    policy_observe: str | None = Field(
        None,
        min_length=10,
        max_length=200,
        description="Why policies that say `observe` may be in force here: what no rule allows then leaves,"
        " without credentials. Unset: such a policy is refused.",
    )
    shadow_policy: Path | None = Field(
        None,
        description="Candidates that judge each request beside the policies in force and change nothing: a"
        " directory or a bundle (instead of all), or one file (instead of the policy of its name).",
    )

    # --- listeners ---
    proxy_host: str = Field("127.0.0.1", description="Address of the shared proxy listener.")
    proxy_port: int | None = Field(
        None, ge=0, le=65535, description="Port of the shared proxy listener; unset: none."
    )
    proxy_share_port: bool = Field(
        False, description="Other daemons on this host may listen there, too (SO_REUSEPORT)."
    )
    proxy_trust_addresses: bool = Field(
        False, description="Nobody can spoof a source address there: class `address`."
    )
    transparent_hosts: tuple[str, ...] = Field(
        ("127.0.0.1",),
        description="Addresses of the transparent and of the DNS listener, where a redirect leads: those of"
        " the interfaces that sandboxes come by.",
    )
    transparent_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for redirected connections, whose clients know of no proxy; unset: none.",
    )
    transparent_trust_addresses: bool = Field(
        False,
        description="Nobody can spoof a source address there: class `address`, `transparent|ADDRESS`. There"
        " is no other class without a proxy to speak to, so the port needs it.",
    )
    dns_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the resolver for such clients, UDP and TCP: it answers A and AAAA with"
        " synthetic addresses and asks nobody; unset: none.",
    )
    proxy_tls_certificate: Path | None = Field(
        None, description="PEM certificate and key of the shared listener; with client CA: class `mtls`."
    )
    proxy_client_ca: Path | None = Field(None, description="PEM roots that sign sandboxes' certificates.")
    token_jwks_file: Path | None = Field(
        None,
        description="JWKS of the platform that signs sandboxes' tokens, read anew when it changes: class"
        " `token`, shown as `Proxy-Authorization: Bearer <jwt>` (or as Basic's password).",
    )
    token_issuer: str | None = Field(None, description="The tokens' `iss`, exactly.")
    token_audience: str | None = Field(
        None, description="The tokens' only `aud`: one that is also for others could be replayed by them."
    )
    control_socket: Path | None = Field(
        None, description="Unix socket of the control API. Default: `control.sock` in the runtime directory."
    )
    control_uids: tuple[int, ...] = Field(
        (), description="User ids that are callers with every grant, besides the daemon's own."
    )
    control_host: str = Field("127.0.0.1", description="Address of the control API over TCP.")
    control_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the control API over TCP, and of the page for whoever is on call; unset: Unix"
        " socket only, and no page.",
    )
    control_grants: Path | None = Field(
        None, description="TOML file of callers: who may open which sessions, revoke, or read."
    )
    control_tls_certificate: Path | None = Field(
        None, description="PEM certificate and key of the control API over TCP; required beyond loopback."
    )
    control_client_ca: Path | None = Field(
        None, description="PEM roots that sign callers' certificates; with them callers may use mTLS."
    )
    control_names: tuple[str, ...] = Field(
        (), description="More names for the Host header over TCP, besides localhost and control_host."
    )

    # --- Vault ---
    vault_url: str | None = Field(None, description="https://… of Vault or OpenBao.")
    vault_ca_file: Path | None = Field(None, description="PEM roots for Vault; unset: public ones.")
    vault_namespace: str | None = Field(None, description="Vault Enterprise or OpenBao namespace.")
    vault_login: Literal["token", "approle", "jwt", "kubernetes"] = Field(
        "token", description="How the daemon logs in."
    )
    vault_token: SecretStr | None = Field(None, description="For `token`; better a file.")
    vault_token_file: Path | None = Field(None, description="For `token`: read anew at each login.")
    vault_role: str = Field("coatcheck", description="For `jwt` and `kubernetes`.")
    vault_role_id: str = Field("", description="For `approle`.")
    vault_secret_id_file: Path | None = Field(None, description="For `approle`: read anew at each login.")
    vault_jwt_file: Path | None = Field(None, description="For `jwt` and `kubernetes`: read at each login.")
    vault_mount: str | None = Field(None, description="Where the login method is mounted, if elsewhere.")
    vault_timeout: float = Field(5.0, gt=0, description="Seconds for a whole answer.")
    secrets_dir: Path | None = Field(None, description="Directory for `file:` secrets; unset: none.")
    secret_ttl: float = Field(60.0, gt=0, description="Seconds until a rotated secret is picked up.")
    secret_max_stale: float = Field(
        300.0, ge=0, description="Seconds past that an old value serves while Vault is down."
    )

    # --- upstream ---
    upstream_ca_file: Path | None = Field(None, description="PEM roots for upstreams; unset: public ones.")
    allowed_networks: tuple[str, ...] = Field(
        (), description="Private ranges (CIDR) that may be dialled; metadata services never."
    )
    connect_to: dict[str, str] = Field(
        {}, description="`host:port` -> `address:port`, as curl's --connect-to; the name is still verified."
    )
    name_servers: tuple[str, ...] = Field((), description="DNS servers; unset: the system's.")
    parent_proxy: str | None = Field(
        None,
        description="`http://host:port` that everything leaves through, but for `connect_to`. It resolves"
        " names, so addresses are screened by it or by nobody.",
    )
    parent_proxy_credentials: Path | None = Field(
        None, description="File with `user:password` for the parent proxy; 0600, read for each connection."
    )

    # --- sessions ---
    session_max_age: float = Field(43_200, gt=0, description="Seconds; a working day.")
    session_lease: float = Field(120, gt=0, description="Seconds; handles outlive a sandbox by at most this.")
    session_ca: bool = Field(
        False,
        description="A CA of its own, in memory only, for each session with its own listener. Default: one,"
        " as one bundle for a fleet is simpler; and an own one does not survive a restart of the daemon.",
    )
    max_sessions: int = Field(10_000, gt=0, description="Live sessions; about 10 kB each.")

    # --- what one sandbox may take at most; the defaults are in `launcher/limits.py` ---
    sandbox_max_memory: int = Field(8192, ge=64, description="MiB; two builds of a large project.")
    sandbox_max_cpus: int = Field(4, ge=1, description="CPUs; more than the host has only share it.")
    sandbox_max_processes: int = Field(4096, ge=8, description="At once; a browser takes hundreds.")
    sandbox_max_disk: int = Field(32_768, ge=16, description="MiB of its root's overlay and its home.")
    sandbox_max_output: int = Field(1024, ge=1, description="MiB of one command; its caller may keep all.")
    sandbox_max_network: int = Field(1024, ge=1, description="MiB a second, both directions together.")
    sandbox_max_run: int = Field(43_200, ge=1, description="Seconds; no session gets older by default.")

    cache_dir: Path | None = Field(
        None,
        description="What is built once and can be built again: images, the guest's agent. Default:"
        " `coatcheck` below XDG_CACHE_HOME, or below ~/.cache.",
    )
    max_sandboxes: int = Field(16, ge=0, description="At once. Each has its memory and about 60 MiB.")
    max_kept_sandboxes: int = Field(
        256, ge=0, description="Running, asleep or only saved: each has its memory and its disk on ours."
    )
    sandbox_sleep_seconds: float = Field(
        60, ge=0, description="At a stop, until those that are to come back sleep; who does not by then ends."
    )
    recover_sandboxes: bool = Field(True, description="By themselves, those that died and were to come back.")
    max_snapshots: int = Field(10, ge=1, description="Of one sandbox; one more is refused.")
    snapshot_reserve: int = Field(
        512,
        ge=64,
        description="MiB that stay free on the state directory's disk, whatever is saved: two files of the"
        " audit log, without which nothing leaves.",
    )
    max_sandboxes_per_caller: int = Field(8, ge=0, description="One caller cannot take them all.")
    sandbox_total_memory: int | None = Field(
        None,
        ge=64,
        description="MiB that all sandboxes together may have before none of them grows any more. Default:"
        " three quarters of this machine's memory; QEMU, the daemon and the disks' cache have the rest.",
    )

    # --- sandboxes that stand by, booted and nobody's; docs/sandboxes.md ---
    warm_pool: int = Field(0, ge=0, le=64, description="How many. Each holds its memory from its boot on.")
    warm_pool_backend: Literal["microvm", "namespace"] | None = Field(
        None, description="Default: as of sandboxes that name none."
    )
    warm_pool_image: str | None = Field(None, description="Default: `default`.")
    warm_pool_memory: int | None = Field(None, description="MiB; a sandbox's default if unset. Others boot.")
    warm_pool_cpus: int | None = Field(None, description="A sandbox's default if unset.")
    warm_pool_disk: int | None = Field(None, description="MiB; a sandbox's default if unset.")
    warm_pool_age: float = Field(
        3600,
        ge=1,
        description="Seconds, then it is replaced: what a machine has drawn and cached grows stale.",
    )

    # --- telling ---
    webhook_url: str | None = Field(
        None, description="Where changes of sandboxes and requests that wait go, signed: docs/control-api.md."
    )
    webhook_secret_file: Path | None = Field(
        None, description="At least 16 bytes, 0600: the HMAC's key. Read anew for each event."
    )
    otel_endpoint: str | None = Field(
        None,
        description="`http(s)://host:port` of an OpenTelemetry collector: OTLP over HTTP, /v1/traces and"
        " /v1/logs are added. Needs the extra `otel`. No OTEL_… variable is read.",
    )
    otel_headers_file: Path | None = Field(
        None, description="Lines `Name: value` for the collector, such as a token; 0600, read for each batch."
    )
    otel_ca_file: Path | None = Field(None, description="PEM roots for the collector; unset: public ones.")
    otel_signals: tuple[Literal["traces", "logs"], ...] = Field(
        ("traces", "logs"), min_length=1, description="Which of them the collector gets."
    )
    otel_attributes: dict[str, str] = Field(
        {}, description="More about this process, as `deployment.environment.name`; not a place for secrets."
    )
    log_format: Literal["human", "json"] = Field("human", description="Of stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Of stderr.")
    audit_checkpoints: Path | None = Field(
        None, description="Second place for signed checkpoints, best on another disk or host."
    )
    drain_seconds: float = Field(30.0, ge=0, description="How long streams may finish after SIGTERM.")

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

    @model_validator(mode="after")
    def _together(self) -> "Settings":
        if (self.webhook_url is None) != (self.webhook_secret_file is None):
            raise ValueError("webhook_url and webhook_secret_file belong together: set both or neither")
        if self.webhook_url is not None and not is_web_url(self.webhook_url):
            raise ValueError("webhook_url must look like https://host/path")
        self._collector()
        if self.parent_proxy_credentials is not None and self.parent_proxy is None:
            raise ValueError("parent_proxy_credentials is of no use without parent_proxy")
        if (self.proxy_client_ca is None) != (self.proxy_tls_certificate is None):
            raise ValueError("proxy_tls_certificate and proxy_client_ca belong together: set both or neither")
        tokens = (self.token_jwks_file, self.token_issuer, self.token_audience)
        if len({value is None for value in tokens}) > 1:
            raise ValueError("token_jwks_file, token_issuer and token_audience belong together: all or none")
        if self.token_issuer is not None and "|" in self.token_issuer:
            raise ValueError("token_issuer must not hold `|`: an origin is written `issuer|pod uid`")
        if self.transparent_port is not None and not self.transparent_trust_addresses:
            raise ValueError(
                "transparent_port is of no use without transparent_trust_addresses: nothing but a source"
                " address tells sandboxes apart there. Set it where none can be spoofed"
            )
        if not self.transparent_hosts:
            raise ValueError("transparent_hosts must name at least one address")
        if self.control_client_ca is not None and self.control_tls_certificate is None:
            raise ValueError("control_client_ca means nothing without control_tls_certificate: set both")
        if (
            self.control_port is not None
            and self.control_tls_certificate is None
            and self.control_host not in ("127.0.0.1", "::1")
        ):
            raise ValueError(
                "control_host is no loopback address, so tokens would cross a network in the clear: "
                "set control_tls_certificate, or use 127.0.0.1 or ::1"
            )
        return self

    def _collector(self) -> None:
        if self.otel_endpoint is None:
            if self.otel_headers_file is not None or self.otel_ca_file is not None:
                raise ValueError("otel_headers_file and otel_ca_file are of no use without otel_endpoint")
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
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coatcheck"

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
            raise UnknownSetting(f"{name} is no setting of coatcheck; see `coatcheck serve --help`")
    file = os.environ.get(PREFIX + "CONFIG")
    if file and not Path(file).is_file():
        raise FileNotFoundError(f"COATCHECK_CONFIG names {file}, which is not a file")
    return Settings(**overrides)


def process_environment() -> Mapping[str, str]:
    """The environment for children that are the user's own command (`coatcheck run`)."""
    return dict(os.environ)


def notify_socket() -> str | None:
    """systemd's readiness socket, if it started us."""
    return os.environ.get("NOTIFY_SOCKET")
