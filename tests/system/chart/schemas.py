"""Kubernetes' own schemas, strict: an unknown key is an error, as with `kubectl apply --validate=strict`."""

import json
from functools import cache

import kubernetes_validate.utils

from tests.system.chart.cluster import Json
from tests.system.chart.helm import Objects

# It reads 2 MB of JSON for each object, and they are the same each time.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

VERSIONS = ("1.29", "1.33", "1.37")
"""The oldest with native sidecars by default, one between, the newest."""
CUSTOM = "monitoring.coreos.com/v1"
"""prometheus-operator's, for which Kubernetes has no schema."""


_passed: set[str] = set()
"""What was looked at before: options leave most objects as they are, and a look takes a while."""


def check(objects: Objects) -> None:
    """ValidationError names what does not fit."""
    for each in objects.by_path.values():
        check_one(each)


def check_one(each: Json) -> None:
    said = json.dumps(each, sort_keys=True)
    if each["apiVersion"] != CUSTOM and said not in _passed:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
        _passed.add(said)
