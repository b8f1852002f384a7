"""Where secrets come from: really logs in, really reads each secret that the policies name.

What is learnt of a secret is whether it is there and whether the daemon could use it, nothing else.
"""

import asyncio
import time
from email.utils import parsedate_to_datetime

from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning
from coatcheck.platform.http_client import Deadline, HttpClient, HttpFailure, tls_context
from coatcheck.secrets import SecretStore, SecretUnavailable
from coatcheck.secrets.configured import make_stores
from coatcheck.secrets.router import Stores
from coatcheck.secrets.usable import troubles
from coatcheck.secrets.vault import VaultStore
from coatcheck.settings.daemon import Settings

SKEW_SECONDS = 30.0
"""A JWT login with a clock that far off is refused by Vault's own default leeway of 60 s soon after."""
SHORT_TOKEN = 300.0
"""Seconds. A token that ends sooner and cannot be renewed leaves the daemon without secrets at once."""


def stores(subject: Subject) -> list[Finding]:
    """The configured stores, and every secret of the policies in them."""
    try:
        made = make_stores(subject.settings)
    except (ValueError, OSError) as error:
        return problem("vault", str(error), "see coatcheck serve --settings")
    return asyncio.run(_ask(subject, made))


async def _ask(subject: Subject, made: dict[str, SecretStore]) -> list[Finding]:
    found: list[Finding] = []
    try:
        vault = made.get("vault")
        if isinstance(vault, VaultStore):
            found += await _clock_of_vault(subject.settings)
            found += await _login(vault, subject.settings)
            if any(each.level == "problem" for each in found):
                made.pop("vault")  # said once, and not again for each secret
                found += await _secrets(subject, made, skipped="vault")
                await vault.close()
                return found
        found += await _secrets(subject, made)
    finally:
        for store in made.values():
            await store.close()
    return found


async def _login(vault: VaultStore, settings: Settings) -> list[Finding]:
    check = "vault"
    try:
        token = await vault.ready()
    except SecretUnavailable as error:
        return problem(
            check,
            f"{settings.vault_url}: {error}",
            error.hint or "check COATCHECK_VAULT_URL and the COATCHECK_VAULT_… login",
        )
    if token.ttl and not token.renewable and not token.ours:
        level = problem if token.ttl < SHORT_TOKEN else warning
        return level(
            check,
            f"the token cannot be renewed and ends in {token.ttl:.0f} s",
            "give a renewable (periodic) token, or use approle, jwt or kubernetes as COATCHECK_VAULT_LOGIN",
        )
    if not token.ttl:
        return warning(
            check,
            "the token never expires: a root token, or one as strong as that",
            "give the daemon a role of its own that may only read its secrets",
        )
    return ok(check, f"{settings.vault_url} accepts the {settings.vault_login} login")


async def _clock_of_vault(settings: Settings) -> list[Finding]:
    """This clock against the Date header of the server. That it is unreachable, the login says."""
    check, url = "clock against vault", f"{settings.vault_url}".rstrip("/")
    deadline = Deadline(settings.vault_timeout, 65_536)
    try:
        http = HttpClient(tls_context(settings.vault_ca_file))
        before = time.time()
        try:
            answer = await http.exchange(deadline, "GET", f"{url}/v1/sys/health")
        finally:
            await http.close()
        now = (before + time.time()) / 2
        theirs = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (HttpFailure, OSError, KeyError, ValueError, TypeError):
        return []
    return compare_clocks(check, now, theirs)


def compare_clocks(check: str, ours: float, theirs: float) -> list[Finding]:
    skew = ours - theirs
    if abs(skew) <= SKEW_SECONDS:
        return ok(check, "they agree")
    return problem(
        check,
        f"this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} vault",
        "handles and certificates expire by this clock: set it (timedatectl set-ntp true)",
    )


async def _secrets(subject: Subject, made: dict[str, SecretStore], skipped: str = "") -> list[Finding]:
    check = "secrets"
    named = [
        (policy.name, credential)
        for policy in subject.policies.values()
        for credential in policy.credentials.values()
        if credential.secret.store != skipped
    ]
    if not named:
        return [] if skipped else ok(check, "the policies name none")
    router = Stores(made)
    looked = [
        (f"credential {credential.name} of policy {policy}", await troubles((credential,), made, router))
        for policy, credential in sorted(named, key=lambda each: (each[0], each[1].name))
    ]
    usable = sum(not wrong for _, wrong in looked)
    absent = [(place, each) for place, wrong in looked for each in wrong if each.absent]
    found: list[Finding] = []
    for place, wrong in looked:
        for each in wrong:
            if not (usable and each.absent):
                found += problem(check, f"{place}: {each.message}", each.hint)
    if usable and absent:
        # A policy may name more than its reader has, as the sample does: requests for the rest are refused.
        found += warning(
            check,
            f"{usable} can be used; not available: {', '.join(each.credential for _, each in absent)}"
            f" ({absent[0][0]}: {absent[0][1].message})",
            f"for those that you need: {absent[0][1].hint}",
        )
    return found or ok(check, f"all {len(named)} exist and are usable")
