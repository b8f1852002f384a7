"""Problems read like a compiler's."""

from coatcheck.policy.file.problem import Level, PolicyError, Problem


def test_a_problem_says_where_what_and_what_to_write() -> None:
    """Editors jump to file:line:column."""
    assert str(Problem(3, 7, "odd", "write even", file="a.yaml")) == "a.yaml:3:7: error: odd; write even"
    assert str(Problem(3, 7, "odd", level=Level.WARNING)) == "3:7: warning: odd"
    assert str(Problem(0, 0, "odd", "write even", file="a.yaml")) == "a.yaml: error: odd; write even"
    assert str(Problem(0, 0, "odd")) == "odd"


def test_problems_come_in_the_order_of_the_files() -> None:
    """A person mends from the top down."""
    late, early = Problem(9, 1, "late", file="a"), Problem(2, 5, "early", file="a")
    error = PolicyError([Problem(1, 1, "next", file="b"), late, early])
    assert [problem.message for problem in error.problems] == ["early", "late", "next"]
    assert str(error).count("\n") == 2
