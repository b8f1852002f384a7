from pathlib import Path

import pytest


def test_each_worker_begins_elsewhere_and_imports_every_file_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one worker has rewritten, the others find. A file that cannot be imported is reported as ever, and
    what the run ignores is not imported."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    pytester.makeini("[pytest]\ntestpaths = checks\npythonpath = .\naddopts = --import-mode=importlib")
    checks = pytester.mkpydir("checks")
    for name in "abcd":
        (checks / f"test_{name}.py").write_text(
            "import os\n"
            f"with open(os.environ['PYTEST_XDIST_WORKER'], 'a') as seen: seen.write('{name}')\n"
            "def test_it(): pass\n"
        )
    (checks / "test_e.py").write_text("import no_such_module")
    (checks / "slow").mkdir()
    (checks / "slow/test_f.py").write_text("open('imported', 'w')")
    without = ("anyio", "cacheprovider", "hypothesispytest", "langsmith_plugin", "schemathesis")
    plugins = ["tests.shared_rewriting", *(f"no:{name}" for name in without)]
    ran = pytester.runpytest_subprocess(
        "-n", "2", "--ignore=checks/slow", *(argument for each in plugins for argument in ("-p", each))
    )
    ran.assert_outcomes(passed=4, errors=1)
    ran.stdout.fnmatch_lines(["*No module named 'no_such_module'*"])
    assert [(pytester.path / worker).read_text() for worker in ("gw0", "gw1")] == ["abcd", "cdab"]
    assert not (pytester.path / "imported").exists()
