"""Whether secrets can be had: asked of real stores, and nothing is learnt but that."""

from pathlib import Path

from coatcheck.policy import load_policy
from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.router import Stores
from coatcheck.secrets.usable import Trouble, troubles
from coatcheck.secrets.vault import VaultConfig, VaultStore
from coatcheck.secrets.vault_login import TokenLogin
from tests.known_secrets import known_secret

HEAD = "version: 1\nowner: tests\n"
ONE = """\
  {name}:
    secret: {ref}
    hosts: [api.example.com]
    inject: {{header: {name}, value: "{{secret}}"}}
"""
RULES = """\
rules:
  - {{name: all, hosts: [api.example.com], methods: [GET], credentials: [{names}]}}
"""


async def look(store: VaultStore, **refs: str) -> dict[str, Trouble]:
    """By credential; the whole store is ``."""
    text = HEAD
    if refs:
        text += "credentials:\n" + "".join(ONE.format(name=name, ref=ref) for name, ref in refs.items())
        text += RULES.format(names=", ".join(refs))
    policy = load_policy("p", text.encode())
    stores = {"vault": store}
    found = await troubles(policy.credentials.values(), stores, Stores(stores))
    await store.close()
    return {each.credential: each for each in found}


async def test_each_credential_that_cannot_be_used_is_told_with_its_reason(bao: EmbeddedVault) -> None:
    """And those that can are not."""
    await bao.put(
        "usable", {"good": known_secret("usable"), "short": "elevenchars", "line": "0123456789abcdef\n"}
    )
    store = VaultStore(VaultConfig(bao.url, TokenLogin(token=bao.root_token)))
    found = await look(
        store,
        good="vault:secret/usable#good",
        short="vault:secret/usable#short",
        line="vault:secret/usable#line",
        lost="vault:secret/usable#nothing",
        other="file:somewhere/else#value",
    )
    assert {name: each.absent for name, each in found.items()} == {
        "short": False, "line": False, "lost": True, "other": True,
    }  # fmt: skip
    assert "shorter than 16 bytes" in found["short"].message and "line break" in found["line"].message
    assert found["other"].hint.startswith("set COATCHECK_SECRETS_DIR")
    assert all(each.hint and "elevenchars" not in str(each) for each in found.values())


async def test_a_store_that_does_not_answer_is_told_once(bao: EmbeddedVault, tmp_path: Path) -> None:
    """Not once for each of its secrets; a store that no credential needs is not asked at all."""
    login = TokenLogin(file=tmp_path / "none")
    found = await look(VaultStore(VaultConfig(bao.url, login)), a="vault:secret/a#b", c="vault:secret/c#d")
    assert list(found) == [""] and "No such file" in found[""].message
    assert await look(VaultStore(VaultConfig(bao.url, login))) == {}
