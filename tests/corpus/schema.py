"""What a case may say: the corpus files, read strictly. No unknown word is let through as a pass."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ruamel.yaml import YAML

HERE: Final = Path(__file__).parent

type Mode = Literal["explicit", "transparent", "reverse", "microvm", "core"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(Strict):
    """What the world's DNS says for one name, over its defaults."""

    answers: list[list[str]] = Field(
        description="Successive answers; the last one repeats. Empty: no data. A name: an alias of it."
    )
    delay: float = 0.0
    code: int = Field(0, description="RCODE; 2 is SERVFAIL, 3 NXDOMAIN.")


class Certificate(Strict):
    """What an origin shows instead of its own."""

    names: list[str] = Field(description="DNS names, as they are written, and addresses.")
    common_name: str = ""
    authority: Literal["trusted", "stranger"] = "trusted"
    expired: bool = False


class Origin(Strict):
    """What the origins answer: raw bytes to each request, or a list of steps."""

    answer: str | None = None
    script: list[dict[str, Any]] = Field(
        [], description="{bytes}, {until: bytes of the request}, {pause}, {read: head}, {close}, {reset}"
    )
    alpn: list[str] = ["http/1.1"]
    certificate: Certificate | None = None


class Seen(Strict):
    """Bytes that somebody must, and must not, have seen."""

    requests: int | None = Field(None, description="How many request heads, at all origins together.")
    connections: int | None = None
    has: list[str] = []
    lacks: list[str] = []


class Expect(Strict):
    """What must be true after the case."""

    verdict: Literal["deny", "pass", "inject", "cut", "broken", "silence"] = Field(
        description="cut: the connection ends without an answer; broken: that, or in the middle of it."
    )
    reason: str | None = Field(None, description="Coatcheck-Reason, and the last decision record's.")
    status: int | Literal["any"] | None = Field(None, description="Default: 200, if nothing is refused.")
    statuses: list[int] | None = Field(None, description="Of all answers, in order, but for CONNECT's 200.")
    origin: Literal["nothing"] | Seen | None = None
    whole: bool | None = Field(None, description="Whether the last answer came to the end it announced.")
    sandbox: Seen = Seen()
    dns: list[str] | None = Field(None, description="All names that were resolved, in any order.")
    audit: dict[str, Any] = Field({}, description="Fields of the last decision record.")
    events: list[dict[str, Any]] = Field([], description="Records that must be there, by these fields.")
    core: Literal["same", "none"] = Field("same", description="none: the pure core has no part in it.")

    @property
    def refuses(self) -> bool:
        return self.verdict in ("deny", "cut", "silence")


class Case(Strict):
    name: str = Field(pattern=r"^[a-z0-9_]+$")
    check: str | None = Field(description="null: a control, which shows that not everything is refused.")
    why: str = Field(min_length=3)
    policy: str = "vendor"
    modes: list[Mode] = ["explicit"]
    parameters: list[dict[str, Any]] = []
    session: dict[str, Any] = Field({}, description="What the session is opened with, over the defaults.")
    settings: dict[str, Any] = Field({}, description="Of the daemon, if it needs one of its own.")
    bounds: dict[str, Any] = Field({}, description="module:NAME of ours, made small: so that it is quick.")
    resolver: dict[str, Answer] = {}
    origin: Origin = Origin()
    steps: list[dict[str, Any]] = Field(min_length=1)
    expect: Expect
    peers: Literal["same", "none"] = Field("same", description="none: what no other proxy claims to do.")


class Off(Strict):
    """One edit of the running program: of a function's source, or of a module's name."""

    within: str | None = Field(None, alias="in", description="module:function or module:Class.method")
    replace: str = ""
    by: str = ""
    set: str | None = Field(None, description="module:NAME")
    to: str = ""

    @model_validator(mode="after")
    def _one(self) -> "Off":
        if (self.within is None) == (self.set is None) or (self.within is not None and not self.replace):
            raise ValueError("either `in`, `replace` and `by`, or `set` and `to`")
        return self


class Check(Strict):
    """One thing that is looked at, and how a test makes the program forget it."""

    says: str
    invariant: str = Field(pattern=r"^I\d+$")
    off: list[Off] = Field(min_length=1)


class CaseFile(Strict):
    class_: str = Field(alias="class")
    says: str
    policies: dict[str, str] = Field({}, description="Of its own, beside those in policies/: name -> YAML.")
    checks: dict[str, Check] = Field({}, description="Of its own, beside those in checks/.")
    cases: list[Case]


class CheckFile(Strict):
    checks: dict[str, Check]


@dataclass(frozen=True, slots=True)
class Run:
    """A case with one of its parameters, in one mode: what a runner runs."""

    case: Case
    class_: str
    mode: Mode
    number: int

    @property
    def id(self) -> str:
        suffix = f"[{self.number}]" if self.number else ""
        return f"{self.case.name}{suffix}" + ("" if self.mode == "explicit" else f"@{self.mode}")


@cache
def classes() -> Mapping[str, CaseFile]:
    """Every class of the corpus, by name."""
    found = [CaseFile.model_validate(_yaml(path)) for path in sorted((HERE / "cases").glob("*.yaml"))]
    names = [case.name for file in found for case in file.cases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two cases of one name: {sorted(twice)}")
    return {file.class_: file for file in found}


@cache
def checks() -> Mapping[str, Check]:
    """Every check that a case may name."""
    found: dict[str, Check] = {}
    files = [CheckFile.model_validate(_yaml(path)) for path in sorted((HERE / "checks").glob("*.yaml"))]
    for each in (*(file.checks for file in files), *(file.checks for file in classes().values())):
        for name, check in each.items():
            if name in found:
                raise ValueError(f"two checks called {name}")
            found[name] = check
    return found


@cache
def policies() -> Mapping[str, str]:
    """Every policy that a case may name: its YAML."""
    found = {path.stem: path.read_text() for path in (HERE / "policies").glob("*.yaml")}
    for file in classes().values():
        if twice := found.keys() & file.policies.keys():
            raise ValueError(f"two policies of one name: {sorted(twice)}")
        found |= file.policies
    return found


def runs(only: str | None = None) -> Iterator[Run]:
    """Everything that there is to run; `only`: a class's, a case's or a check's name."""
    for class_, file in classes().items():
        for case in file.cases:
            if only not in (None, class_, case.name, case.check):
                continue
            for mode in case.modes:
                for number, each in enumerate(_filled(case)):
                    yield Run(each, class_, mode, number)


def _filled(case: Case) -> Iterator[Case]:
    """The case, once for each of its parameters."""
    if not case.parameters:
        yield case
        return
    template = json.dumps(case.model_dump(mode="json", by_alias=True, exclude={"parameters"}))
    for parameter in case.parameters:
        text = template
        for name, value in parameter.items():
            place = "{{" + name + "}}"
            if isinstance(value, str):
                text = text.replace(place, json.dumps(value)[1:-1])
            else:
                text = text.replace(f'"{place}"', json.dumps(value)).replace(place, str(value))
        if "{{" in text:
            raise ValueError(f"{case.name}: a parameter is not given: {text[text.index('{{') :][:40]}")
        yield Case.model_validate_json(text)


def _yaml(path: Path) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(path)
    except Exception as error:
        raise ValueError(f"{path.name}: {error}") from error
