"""`coatcheck sidecar`: the proxy's container of a pod."""

from pathlib import Path
from typing import Annotated

import typer


def sidecar(
    token_file: Annotated[
        Path,
        typer.Option(help="Projected service account token of the pod, issued for Coatcheck's audience."),
    ],
    pod_uid: Annotated[str, typer.Option(help="UID of the pod (metadata.uid); the token must name it.")],
    address: Annotated[
        str, typer.Option(help="IP address of the pod (status.podIP), from which its connections come.")
    ],
    workload_dir: Annotated[
        Path, typer.Option(help="Volume for trust files and handles; the workload mounts it read-only.")
    ],
    policy: Annotated[str, typer.Option(help="Policy of the pod's session.")] = "default",
) -> None:
    """Run a daemon for this container's pod and keep the pod's session alive, until SIGTERM.

    Settings come from COATCHECK_… variables, as for `coatcheck serve`. The Helm chart's webhook adds this
    container to pods: docs/kubernetes.md.

    Example: coatcheck sidecar --token-file /run/secrets/token --pod-uid $UID --address 10.1.2.3
    --workload-dir /run/coatcheck
    """
    from coatcheck.cli.daemon import configure_log, until_it_ends
    from coatcheck.settings.explained import load_settings

    loaded = load_settings()
    configure_log(loaded.log_format, loaded.log_level)
    from coatcheck.kubernetes.sidecar import Pod, serve_pod
    from coatcheck.platform.process_memory import hide_memory

    hide_memory()
    until_it_ends(serve_pod(loaded, Pod(token_file, pod_uid, address, policy, workload_dir)))
