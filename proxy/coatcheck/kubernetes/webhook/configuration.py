"""What the webhook adds to pods and what it is told to refuse: one YAML file, made by the Helm chart."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from coatcheck.certificates.client_environment import trust_environment
from coatcheck.certificates.trust import BUNDLE_FILE, CA_FILE, JAVA_TRUSTSTORE_FILE, TrustFiles
from coatcheck.platform.errors import CoatcheckError

MAX_BYTES = 1024 * 1024
"""A ConfigMap's own limit."""
PREFIX = "coatcheck-"
"""Of every container and volume that is ours, and of nobody else's."""

type Json = dict[str, Any]
type Uid = Annotated[int, Field(ge=1, le=65_533)]


class AdmissionConfigurationError(CoatcheckError):
    """The webhook cannot start. `hint` says what to do next."""


class Fragment(BaseModel):
    """What is added, as it stands in a pod: containers in their order, before all others."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=None)

    initContainers: tuple[Json, ...] = Field(min_length=2)  # noqa: N815 - Kubernetes' own name
    volumes: tuple[Json, ...] = Field(min_length=1)


class Admission(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    proxy_uid: Uid
    workload_uid: Uid
    workload_volume: str = Field(pattern=f"^{PREFIX}")
    workload_dir: str = Field(pattern="^/[a-z0-9/-]+[a-z0-9]$")
    protected_configmap: str
    protected_secrets: tuple[str, ...] = ()
    """Of the proxies in this namespace: no workload may have them in a volume or a variable."""
    writers: tuple[str, ...] = Field(min_length=1)
    allowed_resources: tuple[str, ...] = ()
    refused_annotations: tuple[str, ...] = ()
    fragment: Fragment

    @property
    def trust(self) -> dict[str, str]:
        """The variables that make a workload's clients trust its proxy."""
        place = Path(self.workload_dir)
        return trust_environment(
            TrustFiles(place / CA_FILE, place / BUNDLE_FILE, place / JAVA_TRUSTSTORE_FILE)
        )


def load(path: Path) -> Admission:
    """The configuration in `path`. AdmissionConfigurationError says what is wrong with it."""
    try:
        text = path.read_bytes()[: MAX_BYTES + 1]
        loaded = Admission.model_validate(YAML(typ="safe", pure=True).load(text))
    except OSError as error:
        raise AdmissionConfigurationError(
            f"cannot read {path}: {error.strerror}", "the Helm chart makes it: sidecar/injection.yaml"
        ) from None
    except (YAMLError, ValidationError) as error:
        raise AdmissionConfigurationError(
            f"{path} cannot be used: {str(error)[:2000]}", "render it again with this version's chart"
        ) from None
    foreign = [
        each.get("name", "")
        for each in (*loaded.fragment.initContainers, *loaded.fragment.volumes)
        if not str(each.get("name", "")).startswith(PREFIX)
    ]
    if foreign or loaded.workload_uid == loaded.proxy_uid:
        raise AdmissionConfigurationError(
            f"{path}: {f'{foreign[0]!r} does not begin with {PREFIX}' if foreign else 'two users are one'}",
            "render it again with this version's chart",
        )
    return loaded
