"""Writes the image's bill of materials, CycloneDX 1.5, to a file: what dpkg and Python say is installed here.

Runs in the image, with nothing but the standard library. The same packages give the same bytes: there is no
date and no random number in it.
"""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version")
OURS = "coatcheck"


def debian() -> list[dict[str, Any]]:
    """Every package that dpkg has installed."""
    form = "\\t".join(f"${{{field}}}" for field in ("db:Status-Abbrev", *FIELDS)) + "\\n"
    said = subprocess.run(["dpkg-query", "--show", f"--showformat={form}"], capture_output=True, check=True)
    components = []
    for line in said.stdout.decode().splitlines():
        status, name, version, architecture, source, source_version = line.split("\t")
        if status.strip() != "ii":
            raise SystemExit(f"error: dpkg has {name} half installed ({status.strip()})")
        purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"
        # Advisories speak of source packages.
        properties = [
            {"name": "debian:source", "value": source},
            {"name": "debian:source-version", "value": source_version},
        ]
        components.append(component(name, version, purl, properties=properties))
    return components


def python() -> list[dict[str, Any]]:
    """Every distribution on this interpreter's path."""
    components = []
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"].lower().replace("_", "-").replace(".", "-")
        # What a wheel has compiled into it, by its maker's word (PEP 770).
        inside = sorted(str(file) for file in each.files or () if ".dist-info/sboms/" in str(file))
        properties = [{"name": "python:sbom", "value": file} for file in inside]
        components.append(component(name, each.version, pypi(name, each.version), properties=properties))
    return components


def pypi(name: str, version: str) -> str:
    return f"pkg:pypi/{quote(name, safe='')}@{quote(version, safe='')}"


def component(
    name: str, version: str, purl: str, *, kind: str = "library", properties: list[dict[str, str]]
) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**made, "properties": properties} if properties else made


def document() -> dict[str, Any]:
    components = sorted([*debian(), *python()], key=lambda each: str(each["purl"]))
    [version] = [each["version"] for each in components if each["purl"].startswith(f"pkg:pypi/{OURS}@")]
    itself = {"type": "container", "bom-ref": OURS, "name": OURS, "version": version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": itself},
        "components": components,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n")
