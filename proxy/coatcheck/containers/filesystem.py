"""A policy's `filesystem`, enforced: the command line that runs a command behind bubblewrap.

It is the same inside a microVM and in the namespace backend. Which files exist can only be seen in the
sandbox, right before the command runs. So the wrapping is a shell script: it is made here from canonical
paths, and run there as the command's own user.

Nobody inside can undo it. Every path that the policy names is a mount point in the namespace of every
command, and so is each directory between an `allow_write` and what is denied below it. A mount point cannot
be moved or replaced from where it is mounted (EBUSY). A path that leads through a symbolic link is refused,
because a mount would follow the link. Another command could put a link there between this check and the
mount, so a second shell, inside, checks what was mounted where before the command starts. Nested namespaces
inherit these mounts locked.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.session import Isolation

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - the sandbox's own
"""May always be written: nearly nothing runs without."""

COMMAND_FILTER = "/run/coatcheck/commands.bpf"
"""The namespace backend's filter of system calls (`seccomp`): bubblewrap must be able to mount there until
the command starts, and the command must not."""

REFUSED = 125
"""Exit code when the command was not started, as `docker run` and `env` have it."""

EXECUTED_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".gitconfig", ".gitmodules", ".ripgreprc"),
    *(".mcp.json", ".claude/settings.json", ".claude/settings.local.json"),
)
"""Files whose content is executed when a directory is next opened: by another identity of the sandbox with
more rights, or by the person who gets the directory back. The list is that of Anthropic's sandbox-runtime,
with hooks of the agent's own settings."""
EXECUTED_DIRECTORIES = (".vscode", ".idea", ".claude/commands", ".claude/agents")
EXECUTED_IN_GIT = ("config", "hooks")
"""Only in a repository that exists: a `.git` made as a placeholder would not be one."""

_STEERING = re.compile(r"LD_.*|GLIBC_.*|GCONV_PATH|LOCPATH|NLSPATH|MALLOC_.*|BASH_.*|ENV", re.DOTALL)
"""What these variables do to a program before its first line: code from a place that the sandbox may
write would run with nothing around it. env(1) sets them for the command only."""

_HEAD = """\
set -Cfu
path=${PATH-}; PATH=/usr/sbin:/usr/bin:/sbin:/bin
no() { printf 'coatcheck: %s\\n' "$1" >&2; exit 125; }
real() { part=$1; while [ "$part" ]; do [ ! -L "$part" ] || no \
"$1 leads through a symbolic link, and the policy's filesystem is about the place itself"
part=${part%/*}; done; }
bwrap=$(command -v bwrap) || no 'the image has no bwrap, which the filesystem of the policy needs'
cwd=$(pwd -P)
"""
_TAIL = """\
set -- --die-with-parent --unshare-user --cap-drop ALL --ro-bind / / --dev-bind /dev /dev "$@"
PATH=$path; [ -n "$path" ] || unset PATH
exec "$bwrap" "$@"
"""
_CHECK = """\
set -fu
seen='
' below=
no() { printf 'coatcheck: %s\\n' "$1 was changed while the policy's filesystem was put around the command" >&2
exit 125; }
was_there() { case $seen in *"
$1 $2
"*) ;; *) return 1;; esac; }
same() { at=$1 name=$2; until was_there "$at" "$name"; do
case $name in '') no "$2";; esac
case $at in */"${name##*/}") at=${at%/*} name=${name%/*};; *) no "$2";; esac
done; }
while read -r _ _ device root place options _; do
at=$device${root%/} name=${place%/}
case $below$options:$place in rw,*:/dev|rw:/dev) below=yes:;; esac
case $below$options in
yes:rw|yes:rw,*) case $name in OURS) same "$at" "$name";; *) was_there "$at" "$name" || no "$name"
case $name in BELOW) ;; *) no "$name";; esac;; esac;;
yes:*) ;;
*) seen="$seen$at $name
";; esac
done </proc/self/mountinfo
exec "$@"
"""
"""What /bin/sh runs in there, with the command as its arguments. First come the mounts of the read-only layer
as the sandbox has them, from /dev on those that may be written. Of these each must be at a place that was
meant, and the directory that the layer has by the same name; or it came along with one, such as a volume."""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What to start instead of a command."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def wrap(
    filesystem: Filesystem, command: Sequence[str], environment: Mapping[str, str], isolation: Isolation
) -> Wrapped:
    """`command` behind bubblewrap. The image must have /bin/sh and bwrap.

    Its exit code is the command's; 128+n after signal n, REFUSED when it could not be started as the policy
    wants, and then standard error says why.
    """
    steering = {name: value for name, value in environment.items() if _STEERING.fullmatch(name)}
    moved = ("/usr/bin/env", *(f"{name}={value}" for name, value in steering.items())) if steering else ()
    inside = ("/bin/sh", "-c", check(filesystem), "coatcheck", *moved, *command)
    return Wrapped(
        ("/bin/sh", "-c", script(filesystem, isolation), "coatcheck", "--", *inside),
        {name: value for name, value in environment.items() if name not in steering},
    )


def script(filesystem: Filesystem, isolation: Isolation) -> str:
    """What /bin/sh runs, with `[bubblewrap's options] -- command` as its arguments.

    Arguments are put before others: the last mount, which wins, comes first.
    """
    writable = _writable(filesystem)
    lines = ['set -- --chdir "$cwd" "$@"']
    if isolation is Isolation.NAMESPACE:
        # No filter, no command: the shell ends when it cannot open the file.
        lines += [f"exec 9<{COMMAND_FILTER}", 'set -- --seccomp 9 "$@"']
    for root in filesystem.allow_write:
        lines += _made(root)
    for path in reversed(filesystem.deny_read):
        lines += _mask(path)
    denials = _denials(filesystem)
    for root in filesystem.allow_write:
        lines += _executed(root)
    for path in reversed(denials):
        lines += [f'if [ -d {_q(path)} ]; then set -- --bind {_q(path)} {_q(path)} "$@"; fi']
    for path in reversed(writable):
        if path in TEMPORARY:  # some are links to others
            lines += [f'if [ -d {path} ] && [ ! -L {path} ]; then set -- --bind {path} {path} "$@"; fi']
            continue
        lines += [f'if [ -e {_q(path)} ]; then real {_q(path)}; set -- --bind {_q(path)} {_q(path)} "$@"; fi']
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def check(filesystem: Filesystem) -> str:
    """The look from inside: what was mounted where, before the command starts."""
    roots = _writable(filesystem)
    inner = [f"{root}/{name}" for root in filesystem.allow_write for name in (".git", *_parents())]
    ours = (_q(_escaped(path)) for path in sorted({"/dev", *roots, *inner, *_denials(filesystem)}))
    below = (f"{_q(_escaped(path))}/*" for path in ("/dev", *roots))
    return _CHECK.replace("OURS", "|".join(ours)).replace("BELOW", "|".join(below))


def _writable(filesystem: Filesystem) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*TEMPORARY, *sorted(filesystem.allow_write))))


def _denials(filesystem: Filesystem) -> list[str]:
    """The directories that must stay where they are for what is denied to be found by its name."""
    return [path for root in _writable(filesystem) for path in _pins(root, filesystem.deny_read)]


def _escaped(path: str) -> str:
    """As it stands in mountinfo (proc(5))."""
    return re.sub(r"[ \t\n\\]", lambda letter: f"\\{ord(letter[0]):03o}", path)


def _mask(path: str) -> Iterator[str]:
    """Nothing can be read there: an empty directory that nobody may enter, a device that nobody may open."""
    name = _q(path)
    yield f"if [ -e {name} ] || [ -L {name} ]; then real {name}"
    yield f'if [ -d {name} ]; then set -- --perms 0000 --tmpfs {name} --remount-ro {name} "$@"'
    yield f'else set -- --ro-bind /dev/null {name} "$@"; fi; fi'


def _made(root: str) -> Iterator[str]:
    """A place that may be written is there: nobody could make it from inside. As the command's user, so only
    where that user could have made it without the policy."""
    parts = root.split("/")
    for count in range(2, len(parts) + 1):
        path, parent = "/".join(parts[:count]), "/".join(parts[: count - 1])
        yield f"[ -e {_q(path)} ] || {{ real {_q(parent)}; mkdir {_q(path)} 2>/dev/null; }}"


def _executed(root: str) -> Iterator[str]:
    """Read-only under `root`; what is missing is made first, empty, so that nobody else makes it."""
    yield f"if [ -d {_q(root)} ] && [ -w {_q(root)} ]; then"
    for parent in _parents():
        path = _q(f"{root}/{parent}")
        yield f"[ -e {path} ] || [ -L {path} ] || mkdir {path} 2>/dev/null"
    for name in EXECUTED_DIRECTORIES:
        path = _q(f"{root}/{name}")
        yield f"[ -e {path} ] || [ -L {path} ] || mkdir {path} 2>/dev/null"
    for name in EXECUTED_FILES:
        path = _q(f"{root}/{name}")
        content = "{}" if name.endswith(".json") else ""
        yield f"[ -e {path} ] || [ -L {path} ] || {{ printf '{content}' >{path}; }} 2>/dev/null"
    for name in (*EXECUTED_FILES, *EXECUTED_DIRECTORIES):
        yield from _read_only(f"{root}/{name}")
    git = f"{root}/.git"
    yield f"if [ -d {_q(git)} ]; then"
    for name in EXECUTED_IN_GIT:
        yield from _read_only(f"{git}/{name}")
    yield "fi"
    for parent in (".git", *_parents()):
        path = _q(f"{root}/{parent}")
        yield f'if [ -d {path} ]; then real {path}; set -- --bind {path} {path} "$@"; fi'
    yield "fi"


def _read_only(path: str) -> Iterator[str]:
    name = _q(path)
    yield f'if [ -e {name} ] || [ -L {name} ]; then real {name}; set -- --ro-bind {name} {name} "$@"; fi'


def _parents() -> list[str]:
    """The directories of what is executed from one."""
    names = (*EXECUTED_FILES, *EXECUTED_DIRECTORIES)
    return sorted({name.partition("/")[0] for name in names if "/" in name})


def _pins(root: str, denied: Iterable[str]) -> Iterator[str]:
    """The directories between `root` and what is denied below it, outermost first."""
    found: set[str] = set()
    for path in denied:
        if path.startswith(root + "/"):
            parts = path[len(root) + 1 :].split("/")[:-1]
            found |= {"/".join((root, *parts[: count + 1])) for count in range(len(parts))}
    return iter(sorted(found))


def _q(path: str) -> str:
    return shlex.quote(path)
