"""JUnit XML as pipelines read it."""

from pathlib import Path
from xml.etree.ElementTree import fromstring

from coatcheck.policy import load_policy, read_samples
from coatcheck.policy.samples.files import FileTest
from coatcheck.policy.samples.junit import junit
from coatcheck.policy.samples.trial import try_sample

POLICY = load_policy(
    "p", b"version: 1\nowner: x\nrules: [{name: '<a>', hosts: [a.example], methods: [GET]}]\n"
)
SAMPLES = b"""samples:
  - {request: "GET https://a.example/", expect: allow}
  - {name: 'a <b> & "c"', request: "PUT https://a.example/", expect: allow}
"""


def trials(samples: bytes = SAMPLES, rules: tuple[str, ...] = ("<a>",)) -> FileTest:
    found = tuple((Path("samples/p.yaml"), try_sample(POLICY, sample)) for sample in read_samples(samples))
    return FileTest(Path("p.yaml"), Path("samples/p.yaml"), found, rules)


def test_every_sample_is_a_case_and_a_wrong_answer_its_failure() -> None:
    """With the counts by which pipelines decide, and any text escaped."""
    root = fromstring(junit([trials()]))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("p.yaml", "2", "1")
    good, bad = suite.findall("testcase")
    assert good.get("name") == "GET https://a.example/" and len(good) == 0
    failure = bad.find("failure")
    assert bad.get("name") == 'a <b> & "c"' and failure is not None
    assert failure.get("message") == "expected allow, got deny method_not_allowed"


def test_rules_without_a_sample_are_told() -> None:
    """As output of the suite: it is no failure."""
    out = fromstring(junit([trials(rules=("<a>", "other"))])).find("testsuite/system-out")
    assert out is not None and out.text == "no sample shows at work: other"


def test_a_policy_without_samples_fails() -> None:
    """An empty suite would be green."""
    suite = fromstring(junit([FileTest(Path("p.yaml"), Path("samples/p.yaml"), (), ("a",))]))[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")


def test_what_xml_cannot_hold_is_replaced() -> None:
    """A lone surrogate in a file's name would make the whole report unreadable."""
    test = FileTest(Path("p\udcff\x01.yaml"), Path("s"), (), ())
    assert fromstring(junit([test]))[0].get("name") == "p\ufffd\ufffd.yaml"
