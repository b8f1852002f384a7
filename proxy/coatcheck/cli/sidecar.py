"""`coatcheck sidecar`: the proxy's container of a pod."""

from pathlib import Path
from typing import Annotated

import typer


def sidecar(
    token_file: Annotated[Path, typer.Option(help="The pod's projected token, for our audience.")],
    pod_uid: Annotated[str, typer.Option(help="The pod's UID (metadata.uid), which the token must name.")],
    address: Annotated[
        str, typer.Option(help="The pod's address (status.podIP): where its connections come from.")
    ],
    workload_dir: Annotated[
        Path, typer.Option(help="Volume for trust and handles; the workload only reads it.")
    ],
    policy: Annotated[str, typer.Option(help="The policy of the pod's session.")] = "default",
) -> None:
    """Run a daemon for the pod that this container is in, and keep the pod's session, until SIGTERM.

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
