"""One file, or a directory of files, all or nothing."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from coatcheck.decision.policy import Policy
from coatcheck.policy.file.building import build_policy
from coatcheck.policy.file.models import Document
from coatcheck.policy.file.problem import Level, PolicyError, Problem
from coatcheck.policy.file.reading import MAX_BYTES, Source, read
from coatcheck.policy.file.review import review
from coatcheck.policy.file.validation import POLICY_PARTS, findings_of

MAX_FILES = 1000
"""Files in a directory: each is one team's. More means the wrong directory was named."""

STEM = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""What a policy can be called."""
BUNDLE_MAGIC = b"coatcheck policy bundle v1\n"
"""The first line of a signed bundle, which is no policy file."""


type Parse = Callable[[Mapping[str, bytes]], Mapping[str, Policy | PolicyError]]
"""From files' bytes by the policies' names to what each one is."""


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    """A usable policy and what a reviewer should look at in it."""

    policy: Policy
    warnings: tuple[Problem, ...]


def load_policy(name: str, data: bytes) -> Policy:
    """The policy in `data`. Raises PolicyError with every problem that could be found."""
    return check_policy(name, data).policy


def check_policy(name: str, data: bytes) -> CheckedPolicy:
    """As `load_policy`, with the warnings."""
    source = read(data)
    if source.data is None:
        hint = "write version, owner and rules; a file with only `version: 1` and `owner: …` denies all"
        raise PolicyError([Problem(1, 1, "the file is empty", hint)])
    try:
        document = Document.model_validate(source.data)
    except ValidationError as error:
        raise PolicyError(findings_of(error, source, POLICY_PARTS)) from None
    found = [
        _located(source, finding.location, finding.message, finding.instead, finding.level)
        for finding in review(document)
    ]
    if any(problem.level is Level.ERROR for problem in found):
        raise PolicyError(found)
    return CheckedPolicy(build_policy(name, hashlib.sha256(data).hexdigest(), document), tuple(sorted(found)))


def parse_here(files: Mapping[str, bytes]) -> Mapping[str, Policy | PolicyError]:
    """Each of `files` as `load_policy` has it, in this thread. A daemon that serves has `policy.parsing`."""
    found: dict[str, Policy | PolicyError] = {}
    for name, data in files.items():
        try:
            found[name] = load_policy(name, data)
        except PolicyError as error:
            found[name] = error
    return found


def load_file(path: Path, parse: Parse = parse_here) -> Policy:
    """The policy in the file at `path`, named by its stem. Raises PolicyError."""
    data = _policy_bytes(path)
    try:
        return parsed({path.stem: data}, parse)[path.stem]
    except PolicyError as error:
        raise PolicyError(_in_file(problem, path.name) for problem in error.problems) from None


def load_directory(directory: Path, parse: Parse = parse_here) -> Mapping[str, Policy]:
    """Every `*.yaml` directly in `directory`, by its stem. Raises PolicyError if any one is bad, or none
    is there: the caller keeps what it has."""
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    for path in policy_files(directory):
        try:
            files[path.stem] = _policy_bytes(path)
        except PolicyError as error:
            problems += error.problems
    return parsed(files, parse, problems)


def parsed(files: Mapping[str, bytes], parse: Parse, problems: Iterable[Problem] = ()) -> dict[str, Policy]:
    """The policies in `files`. PolicyError with the problems of all of them, after those known already."""
    found: dict[str, Policy] = {}
    problems = list(problems)
    for name, each in parse(files).items():
        if isinstance(each, PolicyError):
            problems += (_in_file(problem, f"{name}.yaml") for problem in each.problems)
        else:
            found[name] = each
    if problems:
        raise PolicyError(problems)
    return found


def _policy_bytes(path: Path) -> bytes:
    data = read_file(path)
    if data.startswith(BUNDLE_MAGIC):
        raise _refused(
            path.name,
            "this is a signed bundle, and no trust root is set, so no signature can be trusted",
            "set COATCHECK_POLICY_TRUST_ROOT; to look at one: coatcheck policy verify",
        )
    return data


def policy_files(directory: Path) -> list[Path]:
    """The files that are policies, sorted. PolicyError when a name, a mode or the number of them is wrong."""
    try:
        entries = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise _refused(
            str(directory),
            f"the policy directory cannot be read: {error.strerror}",
            "name a directory of *.yaml files",
        ) from None
    _check_mode(directory, os.stat(directory))
    problems = [
        Problem(0, 0, "policy files are named *.yaml", f"rename it to {path.stem}.yaml", file=path.name)
        for path in entries
        if path.suffix == ".yml"
    ]
    files = [path for path in entries if path.suffix == ".yaml"]
    problems += [
        Problem(
            0,
            0,
            "the name of a policy is its file's name",
            "use a-z, 0-9, - and _ before .yaml",
            file=path.name,
        )
        for path in files
        if not STEM.fullmatch(path.stem)
    ]
    if problems:
        raise PolicyError(problems)
    if not files:
        raise _refused(str(directory), "no policy file is here", "put at least one *.yaml file there")
    if len(files) > MAX_FILES:
        raise _refused(
            str(directory), f"more than {MAX_FILES} policy files", "name the directory of policies only"
        )
    return files


def read_file(path: Path, most: int = MAX_BYTES) -> bytes:
    """The file's bytes, at most `most` and one more. PolicyError when anybody could have written them."""
    # Kubernetes mounts a ConfigMap's keys as links into `..data`; a link out of the directory is not that.
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise _refused(path.name, "the file is a link that leads out of the directory", "copy the file there")
    try:
        descriptor = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # Of the file that was opened, not of what the name means by now.
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _refused(path.name, "this is not a regular file", "put a file there")
            _check_mode(path, status)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(most + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise _refused(path.name, "there is no such file", f"put it at {path}, or name another") from None
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror}"
        raise _refused(path.name, problem, "make it readable for this user") from None


def _check_mode(path: Path, status: os.stat_result) -> None:
    # ConfigMap volumes are world-writable directories on a file system mounted read-only.
    if status.st_mode & stat.S_IWOTH and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise _refused(
            path.name, "anyone can write here, so anyone can change the policy", f"run: chmod o-w {path}"
        )


def _refused(file: str, message: str, instead: str) -> PolicyError:
    return PolicyError([Problem(0, 0, message, instead, file=file)])


def _in_file(problem: Problem, file: str) -> Problem:
    return Problem(problem.line, problem.column, problem.message, problem.instead, problem.level, file)


def _located(
    source: Source, location: tuple[str | int, ...], message: str, instead: str, level: Level
) -> Problem:
    return Problem(*source.place(location, key=len(location) == 2), message, instead, level)
