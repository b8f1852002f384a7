import subprocess
from pathlib import Path

import pytest

from demo.upstreams.report_pdf import CHAPTERS, PAGES_A_CHAPTER, make_report


@pytest.mark.needs_debian("pdftotext")
def test_a_real_reader_reads_it(tmp_path: Path) -> None:
    """poppler finds all pages and every finding, and complains of nothing."""
    report = make_report()
    (tmp_path / "report.pdf").write_bytes(report.pdf)
    done = subprocess.run(
        ["pdftotext", "-layout", "report.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    assert done.stdout.count("\f") == CHAPTERS * PAGES_A_CHAPTER
    assert [f for f in report.findings if f in done.stdout] == list(report.findings)


def test_no_two_reports_say_the_same() -> None:
    """A summary with this run's findings can only come from this run's report."""
    assert not set(make_report().findings) & set(make_report().findings)
