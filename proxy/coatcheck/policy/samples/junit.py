"""Tried samples as JUnit XML, which pipelines show as tests."""

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from coatcheck.policy.samples.files import FileTest

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 (2.2) cannot hold, even escaped."""


def junit(tests: Iterable[FileTest]) -> bytes:
    """One suite a policy, one case a sample; a policy without samples is one case that fails."""
    root = Element("testsuites", name="coatcheck policy test")
    for test in tests:
        suite = SubElement(root, "testsuite", name=_text(str(test.path)))
        failed = 0
        for file, trial in test.trials:
            case = SubElement(
                suite,
                "testcase",
                name=_text(trial.sample.title),
                classname=_text(test.path.stem),
                file=_text(str(file)),
            )
            if trial.failure is not None:
                failed += 1
                said = f"expected {trial.failure.expected}, got {trial.failure.got}"
                SubElement(case, "failure", message=_text(said), type="unexpected answer")
        if not test.trials:
            failed = 1
            case = SubElement(suite, "testcase", name="has samples", classname=_text(test.path.stem))
            SubElement(case, "failure", message=_text(f"no samples at {test.where}"), type="no samples")
        suite.set("tests", str(max(len(test.trials), 1)))
        suite.set("failures", str(failed))
        suite.set("errors", "0")
        if test.uncovered:
            SubElement(suite, "system-out").text = _text(
                "no sample shows at work: " + ", ".join(test.uncovered)
            )
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
