"""`coatcheck admission …`: the Kubernetes webhook that adds the proxy to pods."""

from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, emit_json
from coatcheck.cli.daemon import LogFormatOption, LogLevelOption, configure_log, until_it_ends
from coatcheck.cli.errors import CommandError, ExitCode

app = typer.Typer(
    name="admission",
    no_args_is_help=True,
    help="""The webhook that adds the proxy to pods.

It refuses pods that could bypass the proxy. The Helm chart runs it: docs/kubernetes.md.

Example: coatcheck admission review pod.json --configuration admission.yaml""",
)

ConfigurationOption = Annotated[
    Path,
    typer.Option("--configuration", help="Configuration file of the webhook; the Helm chart creates it."),
]


@app.command()
def serve(
    configuration: ConfigurationOption,
    ca_directory: Annotated[
        Path, typer.Option(help="Directory with ca.crt and ca.key, which sign the webhook's certificate.")
    ],
    name: Annotated[str, typer.Option(help="DNS name of the Service that the API server connects to.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 - a Service
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8443,
    log_format: LogFormatOption = "json",
    log_level: LogLevelOption = "info",
) -> None:
    """Answer the API server over HTTPS until SIGTERM. The certificate is issued and renewed automatically.

    Example: coatcheck admission serve --configuration admission.yaml --ca-directory ca --name cc.ns.svc
    """
    configure_log(log_format or "json", log_level or "info")
    from coatcheck.kubernetes.webhook import server

    until_it_ends(server.serve(configuration, ca_directory, name, host, port))


@app.command()
def review(
    pod: Annotated[
        Path, typer.Argument(help="Pod as JSON or YAML (kubectl run … --dry-run=client -o yaml).")
    ],
    configuration: ConfigurationOption,
    as_json: JsonOption = False,
) -> None:
    """Show what the webhook would answer: the pod as it would run, or why it is refused (exit code 1).

    Example: coatcheck admission review pod.yaml --configuration admission.yaml
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from coatcheck.kubernetes.webhook.configuration import load
    from coatcheck.kubernetes.webhook.injection import inject
    from coatcheck.kubernetes.webhook.review import judge

    admission = load(configuration)
    try:
        given = YAML(typ="safe", pure=True).load(pod.read_bytes())
    except YAMLError as error:
        raise CommandError(f"{pod} is neither YAML nor JSON", str(error)[:500], ExitCode.USAGE) from None
    if not isinstance(given, dict) or given.get("kind") != "Pod":
        raise CommandError(f"{pod} holds no Pod", "give one object, of kind Pod", ExitCode.USAGE)
    if wrong := judge(given, admission):
        raise CommandError("the pod is refused\n" + "\n".join(wrong), "docs/kubernetes.md", ExitCode.NO)
    made = inject(given, admission)
    if as_json:
        emit_json(made)
    else:
        import sys

        YAML(typ="safe", pure=True).dump(made, sys.stdout)
