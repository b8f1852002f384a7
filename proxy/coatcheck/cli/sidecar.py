"""`coatcheck sidecar`: the proxy's container of a pod."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.errors import CommandError, ExitCode


def sidecar(
    workload_dir: Annotated[
        Path, typer.Option(help="Volume for trust files and handles; the workload mounts it read-only.")
    ],
    policy: Annotated[str, typer.Option(help="Policy of the pod's session.")] = "default",
    token_file: Annotated[
        Path | None,
        typer.Option(help="Kubernetes: projected service account token of the pod, for our audience."),
    ] = None,
    pod_uid: Annotated[
        str, typer.Option(help="Kubernetes: UID of the pod (metadata.uid); the token must name it.")
    ] = "",
    tenant: Annotated[
        str, typer.Option(help="Without a token: tenant of the session, for attribution and limits.")
    ] = "local",
    subject: Annotated[
        str, typer.Option(help="Without a token: subject of the session, for attribution.")
    ] = "sidecar",
    address: Annotated[
        str | None,
        typer.Option(help="IP address of the pod. Default: the one from which it would reach the internet."),
    ] = None,
) -> None:
    """Run a daemon for this pod and keep the pod's session alive.

    SIGTERM ends it. Settings come from COATCHECK_… variables, as for `coatcheck serve`. In Kubernetes the
    Helm chart's webhook adds this container to pods (docs/kubernetes.md). With podman and docker compose:
    docs/containers.md.

    Example: coatcheck sidecar --workload-dir /run/coatcheck --policy default
    """
    from coatcheck.cli.daemon import configure_log, until_it_ends
    from coatcheck.settings.explained import load_settings

    loaded = load_settings()
    configure_log(loaded.log_format, loaded.log_level)
    from coatcheck.kubernetes.sidecar import Owner, Pod, PodToken, serve_pod
    from coatcheck.platform.process_memory import hide_memory

    if (token_file is None) != (not pod_uid):
        raise CommandError(
            "--token-file and --pod-uid belong together",
            "Give both in Kubernetes, and neither elsewhere.",
            ExitCode.USAGE,
        )
    owner = PodToken(token_file, pod_uid) if token_file is not None else Owner(tenant, subject)
    hide_memory()
    until_it_ends(serve_pod(loaded, Pod(owner, address or own_address(), policy, workload_dir)))


def own_address() -> str:
    """The source address of connections to the outside; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 443))  # TEST-NET-1 (RFC 5737): nobody has it
        except OSError:
            raise CommandError(
                "this container has no way to the outside, so no address of its own is known",
                "Give it a network, or its address by --address.",
            ) from None
        return str(probe.getsockname()[0])
