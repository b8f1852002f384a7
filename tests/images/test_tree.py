"""The tree of a root: what a path leads to, with links that are never the host's."""

import pytest

from coatcheck.images.tree import BadName, Tree, directory, file, link, parts


@pytest.fixture
def tree() -> Tree:
    tree = Tree()
    for path in ("usr/bin", "etc"):
        tree.put(path, directory())
    tree.put("bin", link("usr/bin"))
    tree.put("usr/bin/sh", file(4))
    tree.put("etc/self", link("/etc/self"))
    tree.put("etc/up", link("../../../usr"))
    return tree


def test_a_link_on_the_way_is_followed_inside(tree: Tree) -> None:
    """A package that still ships /bin/cat lands where /bin points."""
    tree.put("bin/cat", file(1))
    assert tree.find("usr/bin/cat") is tree.find("bin/cat") is not None


def test_the_top_has_nothing_above_it(tree: Tree) -> None:
    """.. of the root is the root, as in a chroot: /etc/up cannot lead to the host's /usr."""
    assert tree.resolve("etc/up/bin/sh") is tree.find("usr/bin/sh")


@pytest.mark.parametrize("path", ["etc/self", "etc/self/x", "nowhere/x", "usr/bin/sh/x", "etc/nothing"])
def test_what_leads_nowhere_is_nothing(tree: Tree, path: str) -> None:
    """Circles, gaps and files in the middle end in an answer, not in a loop."""
    assert tree.resolve(path) is None


def test_nothing_is_put_through_a_circle_or_a_file(tree: Tree) -> None:
    """An archive that wants it is broken or worse."""
    for path in ("etc/self/x", "usr/bin/sh/x"):
        with pytest.raises(BadName):
            tree.put(path, file(0))


def test_a_link_is_replaced_and_not_written_through(tree: Tree) -> None:
    """Else a link left by one layer would let the next one overwrite what it points to."""
    tree.put("etc/link", link("/usr/bin/sh"))
    tree.put("etc/link", file(9))
    shell, replaced = tree.find("usr/bin/sh"), tree.find("etc/link")
    assert shell is not None and shell.size == 4
    assert replaced is not None and replaced.is_file


def test_a_directory_over_a_link_is_dpkgs_choice_or_the_layers(tree: Tree) -> None:
    """dpkg keeps the link of a merged /usr; a container's layer replaces it."""
    tree.put("bin", directory(), keep_directory_links=True)
    found = tree.find("bin")
    assert found is not None and found.is_link
    tree.put("bin", directory())
    found = tree.find("bin")
    assert found is not None and found.is_directory and not found.children


def test_a_directory_over_a_directory_keeps_what_is_in_it(tree: Tree) -> None:
    """Only its attributes are new."""
    tree.put("usr", directory(0o700))
    assert tree.root.children["usr"].mode & 0o777 == 0o700
    assert tree.find("usr/bin/sh") is not None


@pytest.mark.parametrize(
    "path", ["a/../b", "..", "a\nwrite /etc/shadow b", "a\x1b[2J", "x" * 256, "d/" * 1500]
)
def test_names_that_could_be_commands_or_climb_are_refused(path: str) -> None:
    """They go to debugfs a line each, and to people's terminals."""
    with pytest.raises(BadName):
        parts(path)


def test_a_name_that_comes_from_a_links_target_is_looked_at_too(tree: Tree) -> None:
    """A dangling link's target becomes a directory's name when something is put below it."""
    tree.put("evil", link("x\nwrite /etc/shadow y"))
    with pytest.raises(BadName, match="control characters"):
        tree.put("evil/file", file(0))


def test_a_walk_names_everything_once_and_parents_first(tree: Tree) -> None:
    """Links are named, not entered."""
    paths = [path for path, _ in tree.walk()]
    assert paths == ["", "/bin", "/etc", "/etc/self", "/etc/up", "/usr", "/usr/bin", "/usr/bin/sh"]
