"""`coatcheck admission review`: what the webhook would say to a pod, before there is a cluster."""

import json
from pathlib import Path

from ruamel.yaml import YAML

from tests.cli.transcript import coatcheck
from tests.kubernetes.webhook.pods import ADMISSION, pod


def test_a_pod_is_shown_as_it_would_run_or_told_why_not(tmp_path: Path) -> None:
    """Exit code 1 for one that is refused, 2 for what is no pod."""
    yaml = YAML(typ="safe", pure=True)
    yaml.dump(ADMISSION.model_dump(mode="json"), tmp_path / "admission.yaml")
    (tmp_path / "good.json").write_text(json.dumps(pod()))
    yaml.dump(pod(hostNetwork=True), tmp_path / "bad.yaml")
    (tmp_path / "none.yaml").write_text("kind: Deployment\n")
    told = ("--configuration", str(tmp_path / "admission.yaml"))
    good = coatcheck("admission", "review", str(tmp_path / "good.json"), "--json", *told, cwd=tmp_path)
    assert good.code == 0
    names = [each["name"] for each in json.loads(good.out)["spec"]["initContainers"]]
    assert names == ["coatcheck-redirect", "coatcheck-proxy"]
    plain = coatcheck("admission", "review", str(tmp_path / "good.json"), *told, cwd=tmp_path)
    assert yaml.load(plain.out) == json.loads(good.out)
    bad = coatcheck("admission", "review", str(tmp_path / "bad.yaml"), *told, cwd=tmp_path)
    assert bad.code == 1 and "spec.hostNetwork" in bad.err
    none = coatcheck("admission", "review", str(tmp_path / "none.yaml"), *told, cwd=tmp_path)
    assert none.code == 2 and "holds no Pod" in none.err
