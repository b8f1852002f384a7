"""`coatcheck policy …`: look at policy files without a daemon, and ask a daemon about its own."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli import policy_bundle, policy_check, policy_diff, policy_replay, policy_samples
from coatcheck.cli.control import JsonOption, SocketOption, client_for, configured_policy, emit_json
from coatcheck.cli.errors import CommandError, ExitCode

app = typer.Typer(
    name="policy",
    no_args_is_help=True,
    help="Check, explain, test and sign policies.\n\nExample: coatcheck policy check policies/",
)
app.command("check")(policy_check.check)
app.command("test")(policy_samples.try_out)
app.command("diff")(policy_diff.diff)
app.command("key")(policy_bundle.key)
app.command("bundle")(policy_bundle.bundle)
app.command("sign")(policy_bundle.sign)
app.command("verify")(policy_bundle.verify)
app.command("list")(policy_bundle.list_policies)
app.command("replay")(policy_replay.replay)
app.command("learn")(policy_replay.learn)


@app.command()
def explain(
    method: Annotated[str, typer.Argument(help="GET, POST, …")],
    url: Annotated[str, typer.Argument(help="https://host/path")],
    policy: Annotated[
        str | None, typer.Option(help="Policy file, or the name of a policy in the daemon's directory.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Id of a live session; the daemon is asked.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "-H", "--header", metavar="'NAME: VALUE'", help="Request header, `Name: value`. Repeatable."
        ),
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain which rule decides a request, which credential may be injected, and why others may not.

    Exit code 1: the request would be refused.

    Example: coatcheck policy explain POST https://api.openai.com/v1/responses --policy default
    """
    headers = tuple(_header(text) for text in header or ())
    if session is not None:
        answer = client_for(socket).explain(session, method, url, headers=headers)
        emit_json(answer) if as_json else typer.echo(answer["text"], nl=False)
        allowed = bool(answer["allowed"])
    else:
        from coatcheck.policy.checking import explain_request

        found = explain_request(_policy_file(policy or "default"), method, url, headers)
        emit_json(found.as_json()) if as_json else typer.echo(found.text, nl=False)
        allowed = found.allowed
    if not allowed:
        raise typer.Exit(ExitCode.NO)


@app.command()
def schema(
    samples: Annotated[
        bool, typer.Option("--samples", help="Print the schema of sample files instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of policy files, for editors.

    Example: coatcheck policy schema > policies/schema.json
    """
    from coatcheck.policy.editor_schema import policy_schema, samples_schema

    typer.echo(json.dumps(samples_schema() if samples else policy_schema(), indent=2))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise CommandError(
            f"{text!r} is not a header", "write it as curl does: -H 'upgrade: websocket'", ExitCode.USAGE
        )
    return name.strip().lower(), value.strip()


def _policy_file(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    configured = configured_policy()
    candidate = configured / f"{name}.yaml" if configured.is_dir() else configured
    if candidate.is_file() and candidate.stem == Path(name).stem:
        return candidate
    raise CommandError(
        f"there is no policy {name!r}, neither as a file nor in {configured}",
        "give --policy FILE, or --session ID to ask the daemon",
    )
