"""`coatcheck policy key|bundle|sign|verify|list`: policies with a signature, and what is in force."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, configured_policy, counted, emit_json
from coatcheck.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from coatcheck.policy.bundle.bundle import Bundle


def key(
    path: Annotated[
        Path,
        typer.Argument(
            help=("File for the new private key. The public key is written next to it with the suffix .pub.")
        ),
    ],
) -> None:
    """Create a key for signing bundles (Ed25519). Do not keep it on machines that run the daemon.

    Example: coatcheck policy key policy-key.pem
    """
    from coatcheck.policy.bundle.signing_key import make_signing_key

    try:
        public, name = make_signing_key(path)
    except FileExistsError as error:
        what_to_do = "sign with it; or name another file, and let the daemons trust both"
        raise CommandError(f"there is a key already in {path}", what_to_do) from error
    typer.echo(f"{name}: {path} signs; {public} goes into the file that COATCHECK_POLICY_TRUST_ROOT names")


def bundle(
    path: Annotated[Path, typer.Argument(help="Directory of policy files, or a single file.")],
    version: Annotated[
        int,
        typer.Option(
            min=1,
            help=(
                "Version number. It must grow with each release: a daemon refuses a lower version"
                " than it has used."
            ),
        ),
    ],
    owner: Annotated[str, typer.Option(help="Team that is responsible for the bundle.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    created: Annotated[
        datetime | None,
        typer.Option(
            help="Creation time, for reproducible builds. Default: now.",
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%SZ"],
        ),
    ] = None,
) -> None:
    """Pack policies into one file for signing. The same input gives the same bytes.

    Exit code 1: a policy cannot be loaded.

    Example: coatcheck policy bundle policies/ --version 12 --owner platform-security -o release.bundle
    """
    from coatcheck.platform.private_files import write_atomically
    from coatcheck.policy.bundle.bundle import build, decode
    from coatcheck.policy.file.loading import policy_files, read_file

    files = policy_files(path) if path.is_dir() else [path]
    made = build(
        {file.stem: read_file(file) for file in files},
        version=version,
        owner=owner,
        created=_utc(created or datetime.now(UTC)),
    )
    write_atomically(output, made, mode=0o644, overwrite=True)
    typer.echo(f"{output}: {_line(decode(made))}, not signed yet: coatcheck policy sign {output}")


def sign(
    path: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="Bundle file; the signature is added to it.")
    ],
    key: Annotated[Path, typer.Option(help="Private key (PEM, mode 0600).")],
) -> None:
    """Sign a bundle. Existing signatures stay, so that a key can be replaced without a gap.

    Example: coatcheck policy sign release.bundle --key policy-key.pem
    """
    from coatcheck.platform.private_files import write_atomically
    from coatcheck.policy.bundle.bundle import MAX_BUNDLE_BYTES, decode
    from coatcheck.policy.bundle.bundle import sign as signed_by
    from coatcheck.policy.bundle.signing_key import read_signing_key
    from coatcheck.policy.file.loading import read_file

    signed = signed_by(read_file(path, 2 * MAX_BUNDLE_BYTES), read_signing_key(key))
    write_atomically(path, signed, mode=0o644, overwrite=True)
    found = decode(signed)
    typer.echo(f"{path}: {_line(found)}, signed by {', '.join(found.keys)}")


def verify(
    path: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="Bundle file. Default: the daemon's setting.")
    ] = None,
    trust_root: Annotated[
        Path | None,
        typer.Option(help="PEM file with the trusted public keys. Default: COATCHECK_POLICY_TRUST_ROOT."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a daemon would accept a bundle: it has a trusted signature, and each policy can be loaded.

    The version is not checked: only a daemon knows which versions it has used. Exit code 1: not accepted.

    Example: coatcheck policy verify release.bundle --trust-root policy-keys.pem
    """
    from coatcheck.policy.bundle.signed import SignedPolicies

    root = trust_root or _configured_trust_root()
    where = path or configured_policy()
    reader = SignedPolicies(root)
    policies = reader.read(where)
    accepted = reader.accepted
    assert accepted is not None  # noqa: S101 - `read` sets it or raises
    found = accepted.bundle
    if as_json:
        emit_json(
            {
                "version": found.version,
                "owner": found.owner,
                "created": found.created,
                "digest": found.digest,
                "key": accepted.key,
                "signatures": list(found.keys),
                "policies": [
                    {"name": p.name, "owner": p.owner, "sha256": p.sha256} for p in policies.values()
                ],
            }
        )
        return
    typer.echo(f"{where}: {_line(found)}, signed by the trusted key {accepted.key}")
    for policy in policies.values():
        rules = counted(len(policy.rules), "rule")
        typer.echo(f"  {policy.name}: {policy.owner}, {rules}, sha256 {policy.sha256[:16]}")


def list_policies(socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """List the policies in force in the daemon, their bundle, and what the daemon refused last.

    Exit code 1: the newest files were refused, and older ones are in force.

    Example: coatcheck policy list
    """
    answer = client_for(socket).policy_list()
    if as_json:
        emit_json(answer)
    else:
        for policy in answer["policies"]:
            rules = counted(len(policy["rules"]), "rule")
            credentials = counted(len(policy["credentials"]), "credential")
            named = f"{policy['name']}: {policy['owner']}"
            typer.echo(f"{named}, {rules}, {credentials}, sha256 {policy['sha256'][:16]}")
        if answer["bundle"]:
            typer.echo(_bundle_line(answer["bundle"]))
        if answer["shadow"]:
            typer.echo(_shadow_lines(answer["shadow"]))
    if answer["refused"]:
        if not as_json:
            typer.echo(f"REFUSED, older ones are in force: {answer['refused']}")
        raise typer.Exit(ExitCode.NO)


def _bundle_line(said: dict[str, Any]) -> str:
    return f"bundle version {said['version']} of {said['owner']}, {said['created']}, signed by {said['key']}"


def _shadow_lines(said: dict[str, Any]) -> str:
    refused = f"candidates REFUSED: {said['refused']}"
    if not said["policies"]:
        return refused if said["refused"] else "candidates: none"
    named = ", ".join(f"{each['name']} {each['sha256'][:16]}" for each in said["policies"])
    counts = [f"{count} {result}" for result, count in said["results"].items() if count]
    different = sum(count for result, count in said["results"].items() if result != "same")
    lines = [f"candidates: {named}", f"requests under them: {', '.join(counts) or 'none yet'}"]
    if different:
        lines[1] += " (which: coatcheck audit tail --shadow)"
    return "\n".join(lines + [refused] * bool(said["refused"]))


def _line(found: "Bundle") -> str:
    policies = counted(len(found.files), "policy", "policies")
    return (
        f"version {found.version} of {found.owner}, {found.created}, {policies}, digest {found.digest[:16]}"
    )


def _utc(at: datetime) -> str:
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _configured_trust_root() -> Path:
    from coatcheck.settings.explained import load_settings

    root = load_settings().policy_trust_root
    if root is None:
        raise CommandError(
            "no trust root is set, so no signature can be trusted",
            "give --trust-root FILE, or set COATCHECK_POLICY_TRUST_ROOT",
            ExitCode.USAGE,
        )
    return root
