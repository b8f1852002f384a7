"""Every login method against a real OpenBao, and the life of our own token."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coatcheck.secrets import SecretDenied, SecretMissing, SecretUnavailable
from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultStore
from coatcheck.secrets.vault_login import AppRoleLogin, JwtLogin, KubernetesLogin, TokenLogin
from tests.known_secrets import known_secret, remember_secret
from tests.secrets.refs import ref
from tests.secrets.slow_front import SlowFront
from tests.system.secrets.conftest import MakeStore

READ = 'path "secret/data/*" { capabilities = ["read"] }'

type WriteFile = Callable[..., Path]


@pytest.fixture
async def role(bao: EmbeddedVault) -> str:
    """A fresh name for this test's policy, AppRole and auth mount; the secret `login` exists."""
    name = f"role-{secrets.token_hex(4)}"
    await bao.put("login", {"api_key": known_secret("login")})
    await bao.call(lambda client: client.sys.create_or_update_policy(name, READ))
    return name


async def approle(bao: EmbeddedVault, name: str, file: Path, **settings: Any) -> AppRoleLogin:
    """An AppRole `name` on an auth mount of that name, its secret_id in `file`."""

    def prepare(client: Any) -> str:
        client.sys.enable_auth_method("approle", path=name)
        client.auth.approle.create_or_update_approle(
            name, token_policies=[name], mount_point=name, **{"token_ttl": "1h"} | settings
        )
        secret_id = client.auth.approle.generate_secret_id(name, mount_point=name)["data"]["secret_id"]
        file.write_text(remember_secret(f"secret_id of {name}", secret_id))
        role_id: str = client.auth.approle.read_role_id(name, mount_point=name)["data"]["role_id"]
        return role_id

    return AppRoleLogin(await bao.call(prepare), file, mount=name)


async def read(store: VaultStore) -> str:
    return (await store.fetch(ref("login"))).reveal()


async def accessors(bao: EmbeddedVault) -> set[str]:
    answer = await bao.call(lambda client: client.list("auth/token/accessors"))
    return set(answer["data"]["keys"])


async def make_token(bao: EmbeddedVault, policy: str, **settings: Any) -> str:
    answer = await bao.call(lambda client: client.auth.token.create_orphan(policies=[policy], **settings))
    token: str = answer["auth"]["client_token"]
    return remember_secret(f"token of {policy}", token)


async def test_token_file_is_read_anew_at_each_login(
    bao: EmbeddedVault, role: str, make_store: MakeStore, write_file: WriteFile
) -> None:
    """When the token in the file has died, a new one in its place is found without a restart."""
    file = write_file("token", await make_token(bao, role) + "\n")
    store = make_store(login=TokenLogin(file=file))
    assert await read(store) == known_secret("login")
    dead = file.read_text().strip()
    file.write_text(await make_token(bao, role))
    await bao.call(lambda client: client.auth.token.revoke(dead))
    assert await read(store) == known_secret("login")


async def test_approle_login(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """role_id and the secret_id in its file give a token that reads; VAULT_TOKEN is not sent."""
    monkeypatch.setenv("VAULT_TOKEN", known_secret("an operator's own token"))
    login = await approle(bao, role, tmp_path / "secret-id")
    async with SlowFront.start(bao.url) as front:
        assert await read(make_store(url=front.url, login=login)) == known_secret("login")
        assert front.asked[f"/v1/auth/{role}/login"] == 1
        assert front.tokens[f"/v1/auth/{role}/login"] == set()
        assert len(front.tokens["login"]) == 1


async def test_concurrent_cold_reads_log_in_once(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """Thirty paths asked for at once with no token yet: one login for all."""
    login = await approle(bao, role, tmp_path / "secret-id")
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url, login=login)
        reads = (store.fetch(ref(f"cold-{number}")) for number in range(30))
        await asyncio.gather(*reads, return_exceptions=True)
        assert front.asked[f"/v1/auth/{role}/login"] == 1


async def test_jwt_login_reads_the_platforms_token_anew(
    bao: EmbeddedVault, role: str, make_store: MakeStore, write_file: WriteFile
) -> None:
    """An EC-signed platform token logs in; after its rotation the file's new one does; a wrong one not."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def prepare(client: Any) -> None:
        client.sys.enable_auth_method("jwt", path=role)
        client.auth.jwt.configure(jwt_validation_pubkeys=[public], path=role)
        client.auth.jwt.create_role(
            role, "sub", [], role_type="jwt", bound_audiences=["vault"], bound_subject="coatcheck",
            token_policies=[role], path=role,
        )  # fmt: skip

    def platform_token(audience: str, lifetime: timedelta = timedelta(minutes=5)) -> str:
        now = datetime.now(UTC)
        claims = {"sub": "coatcheck", "aud": audience, "iat": now, "nbf": now, "exp": now + lifetime}
        return jwt.encode(claims, key, algorithm="ES256")

    await bao.call(prepare)
    file = write_file("jwt", platform_token("vault"))
    login = JwtLogin(role, file, mount=role)
    store = make_store(login=login)
    assert await read(store) == known_secret("login")

    file.write_text(platform_token("somebody-else"))
    with pytest.raises(SecretUnavailable, match="cannot log in") as caught:
        await read(make_store(login=login))
    assert file.read_text()[:40] not in str(caught.value)

    file.write_text(platform_token("vault"))
    await bao.call(lambda client: client.sys.revoke_prefix(f"auth/{role}/"))
    assert await read(store) == known_secret("login")


@asynccontextmanager
async def cluster(reviewed: list[str]) -> AsyncIterator[str]:
    """A Kubernetes API's TokenReview, which finds every token to be the pod's; notes what it was shown."""

    async def review(request: web.Request) -> web.Response:
        asked = await request.json()
        reviewed.append(asked["spec"]["token"])
        user = {"username": "system:serviceaccount:agents:coatcheck", "uid": "uid-1", "groups": []}
        status = {"authenticated": True, "user": user, "audiences": asked["spec"].get("audiences", [])}
        return web.json_response(asked | {"status": status}, status=201)

    app = web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", review)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_kubernetes_login_shows_the_pods_token(
    bao: EmbeddedVault, role: str, make_store: MakeStore, write_file: WriteFile
) -> None:
    """OpenBao's kubernetes method shows the file's token to the cluster's TokenReview, and logs us in."""
    pod = {"namespace": "agents", "serviceaccount": {"name": "coatcheck", "uid": "uid-1"}}
    claims = {
        "sub": "system:serviceaccount:agents:coatcheck",
        "iss": "https://kubernetes.default.svc",
        "iat": int(time.time()) - 5,
        "nbf": int(time.time()) - 5,
        "exp": int(time.time()) + 300,
        "kubernetes.io": pod,
    }
    token = jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256")
    reviewed: list[str] = []
    async with cluster(reviewed) as url:

        def prepare(client: Any) -> None:
            client.sys.enable_auth_method("kubernetes", path=role)
            client.auth.kubernetes.configure(
                url,
                token_reviewer_jwt=token,
                kubernetes_ca_cert=trustme.CA().cert_pem.bytes().decode(),
                disable_local_ca_jwt=True,
                mount_point=role,
            )
            client.auth.kubernetes.create_role(
                role, ["coatcheck"], ["agents"], policies=[role], mount_point=role
            )

        await bao.call(prepare)
        store = make_store(login=KubernetesLogin(role, write_file("sa-token", token), mount=role))
        assert await read(store) == known_secret("login")
    assert reviewed == [token]


async def test_our_token_is_renewed_before_it_expires(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """A token of 3 s still works after 5 s, by renewal: there was one login only, and no reads between."""
    login = await approle(bao, role, tmp_path / "secret-id", token_ttl="3s", token_max_ttl="1h")
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url, login=login)
        assert await read(store) == known_secret("login")
        await asyncio.sleep(5)
        assert await read(store) == known_secret("login")
        assert front.asked[f"/v1/auth/{role}/login"] == 1
        assert front.asked["/v1/auth/token/renew-self"] >= 1


@pytest.mark.parametrize(
    "limits",
    [{"token_ttl": "2s", "token_type": "batch"}, {"token_ttl": "2s", "token_max_ttl": "3s"}],
    ids=["not renewable", "maximum age"],
)
async def test_a_token_that_cannot_be_renewed_is_replaced(
    limits: dict[str, str], bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """Batch tokens, and tokens near their maximum age: a new login comes before the old one ends."""
    login = await approle(bao, role, tmp_path / "secret-id", **limits)
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url, login=login)
        assert await read(store) == known_secret("login")
        await asyncio.sleep(3.5)
        logins = front.asked[f"/v1/auth/{role}/login"]
        assert await read(store) == known_secret("login")
        assert logins == front.asked[f"/v1/auth/{role}/login"] >= 2


async def test_a_revoked_token_is_replaced_by_one_new_login(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """Somebody revoked our token: the next read logs in again and succeeds."""
    login = await approle(bao, role, tmp_path / "secret-id")
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url, login=login)
        await read(store)
        await bao.call(lambda client: client.sys.revoke_prefix(f"auth/{role}/"))
        assert await read(store) == known_secret("login")
        assert front.asked[f"/v1/auth/{role}/login"] == 2


async def test_a_denied_path_does_not_log_in_again_and_again(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """A path that no policy allows is denied, and costs no new token while ours is alive and young."""
    login = await approle(bao, role, tmp_path / "secret-id")
    await bao.call(lambda client: client.sys.create_or_update_policy(role, READ.replace("data", "other")))
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url, login=login, breaker_threshold=100)
        for _ in range(5):
            with pytest.raises(SecretDenied, match="permission denied"):
                await read(store)
        assert front.asked[f"/v1/auth/{role}/login"] == 1


async def test_a_dead_token_is_not_a_denied_path(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """Vault answers 403 to both. What the daemon may not read is unknown until it has a token that counts."""
    login = await approle(bao, role, tmp_path / "secret-id")
    store = make_store(login=login)
    await read(store)
    (tmp_path / "secret-id").write_text(known_secret("wrong secret_id"))
    await bao.call(lambda client: client.sys.revoke_prefix(f"auth/{role}/"))
    with pytest.raises(SecretUnavailable) as caught:
        await read(store)
    assert not isinstance(caught.value, SecretDenied | SecretMissing)


async def test_failed_logins_are_not_repeated_at_once(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """A wrong secret_id is tried once, then there is a pause: Vault locks out who guesses."""
    login = await approle(bao, role, tmp_path / "secret-id")
    right = (tmp_path / "secret-id").read_text()
    (tmp_path / "secret-id").write_text(known_secret("wrong secret_id"))
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url, login=login)
        with pytest.raises(SecretUnavailable, match="cannot log in"):
            await read(store)
        with pytest.raises(SecretUnavailable, match="last login to Vault failed"):
            await read(store)
        assert front.asked[f"/v1/auth/{role}/login"] == 1
        (tmp_path / "secret-id").write_text(right)
        await asyncio.sleep(1.05)
        assert await read(store) == known_secret("login")


async def test_our_token_is_ended_when_we_stop(
    bao: EmbeddedVault, role: str, make_store: MakeStore, tmp_path: Path
) -> None:
    """close() revokes the token that a login gave; it is gone from Vault's list."""
    login = await approle(bao, role, tmp_path / "secret-id")
    before = await accessors(bao)
    store = make_store(login=login)
    await read(store)
    assert len(await accessors(bao) - before) == 1
    await store.close()
    assert not await accessors(bao) - before


async def test_a_given_token_is_not_ended(bao: EmbeddedVault, role: str, make_store: MakeStore) -> None:
    """A token that somebody else made is theirs: close() leaves it alive."""
    token = await make_token(bao, role)
    for _ in range(2):
        store = make_store(login=TokenLogin(token=token))
        assert await read(store) == known_secret("login")
        await store.close()
