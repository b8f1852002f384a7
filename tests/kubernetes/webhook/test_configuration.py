"""What the webhook does not start with."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from coatcheck.kubernetes.webhook.configuration import Admission, AdmissionConfigurationError, load
from tests.kubernetes.webhook.pods import ADMISSION


def written(directory: Path, **changed: object) -> Path:
    file = directory / "admission.yaml"
    YAML(typ="safe", pure=True).dump(ADMISSION.model_dump(mode="json") | changed, file)
    return file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The trust variables lead into the directory that the workload mounts."""
    loaded = load(written(tmp_path))
    assert loaded == Admission.model_validate(ADMISSION.model_dump())
    assert loaded.trust["SSL_CERT_FILE"] == "/run/coatcheck/ca-bundle.pem"
    assert loaded.trust["NODE_EXTRA_CA_CERTS"] == "/run/coatcheck/coatcheck-ca.pem"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"proxy_uid": 0}, "proxy_uid"),
        ({"proxy_uid": 1000}, "two users are one"),
        ({"writers": []}, "writers"),
        ({"surprise": 1}, "surprise"),
        ({"workload_dir": "/run/../etc"}, "workload_dir"),
        ({"fragment": {"initContainers": [{"name": "a"}] * 2, "volumes": [{"name": "c"}]}}, "'a' does"),
        ({"fragment": {"initContainers": [], "volumes": []}}, "initContainers"),
    ],
)  # fmt: skip
def test_a_configuration_that_would_leave_a_gap_is_refused(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    """Unknown keys, root as proxy, one user for both, nothing to add, names that are anybody's."""
    with pytest.raises(AdmissionConfigurationError, match=said):
        load(written(tmp_path, **changed))


def test_a_file_that_is_not_there_or_no_yaml_is_told(tmp_path: Path) -> None:
    """With what makes it."""
    with pytest.raises(AdmissionConfigurationError, match="cannot read") as refused:
        load(tmp_path / "none.yaml")
    assert "Helm chart" in refused.value.hint
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(AdmissionConfigurationError, match="cannot be used"):
        load(broken)
