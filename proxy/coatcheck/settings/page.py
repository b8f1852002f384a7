"""The settings of logging in on the page by OpenID Connect: a part of `settings`."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, model_validator

from coatcheck.platform.web_url import is_web_url


@dataclass(frozen=True, slots=True)
class OidcClient:
    """What we are to one OpenID provider."""

    issuer: str
    client_id: str
    secret_file: Path | None = None
    """None: a public client, which PKCE alone protects."""
    ca_file: Path | None = None

    @property
    def host(self) -> str:
        """What a person knows the provider by."""
        return urlsplit(self.issuer).netloc


class PageSettings(BaseModel):
    """Unset `page_oidc_issuer`: people log in by token or link, and no button is shown."""

    page_oidc_issuer: str | None = Field(
        None,
        max_length=1000,
        description="Issuer URL (`https://…`) of the OpenID provider for logins on the page, exactly as in"
        " the `iss` claim of its tokens. The grants file maps its users to callers. See"
        " docs/page.md.",
    )
    page_oidc_client_id: str | None = Field(
        None, min_length=1, max_length=1000, description="Client ID of this daemon at the OpenID provider."
    )
    page_oidc_client_secret_file: Path | None = Field(
        None,
        description="File with the client secret, mode 0600; read for each login. Unset: a public client that"
        " uses PKCE only.",
    )
    page_oidc_ca_file: Path | None = Field(
        None,
        description="PEM file with the CAs that the OpenID provider's certificate may chain to. Unset: the"
        " public CAs.",
    )

    @model_validator(mode="after")
    def _page_oidc(self) -> "PageSettings":
        if (self.page_oidc_issuer is None) != (self.page_oidc_client_id is None):
            raise ValueError("page_oidc_issuer and page_oidc_client_id belong together: set both or neither")
        if self.page_oidc_issuer is None:
            for name in ("client_secret_file", "ca_file"):
                if getattr(self, f"page_oidc_{name}") is not None:
                    raise ValueError(f"page_oidc_{name} has no effect without page_oidc_issuer")
        elif not is_web_url(self.page_oidc_issuer, ("https",)) or "?" in self.page_oidc_issuer:
            raise ValueError("page_oidc_issuer must look like https://host/path, without query or fragment")
        return self

    @property
    def page_oidc(self) -> OidcClient | None:
        if self.page_oidc_issuer is None or self.page_oidc_client_id is None:
            return None
        return OidcClient(
            self.page_oidc_issuer,
            self.page_oidc_client_id,
            self.page_oidc_client_secret_file,
            self.page_oidc_ca_file,
        )
