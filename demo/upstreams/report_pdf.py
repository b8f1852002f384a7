"""A long PDF report with facts that are made up anew each time: who names them has read it.

The small part of PDF 1.4 (ISO 32000-1) that text in a standard font needs.
"""

import secrets
import zlib
from dataclasses import dataclass

CHAPTERS = 8
PAGES_A_CHAPTER = 5
_LINES_A_PAGE = 44
_WORDS = (
    "turnover", "freight", "harbour", "tonnage", "rainfall", "copper", "demand", "storage", "ferry", "tariff",
    "harvest", "pilot", "dredging", "winter", "backlog", "berth", "transit", "ledger", "quota", "survey",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    pdf: bytes
    findings: tuple[str, ...]
    """One a chapter; nobody can guess them."""


def make_report() -> Report:
    """About forty pages."""
    findings: list[str] = []
    pages: list[list[str]] = []
    for chapter in range(1, CHAPTERS + 1):
        subject = secrets.choice(_WORDS)
        finding = f"{subject} rose by {secrets.randbelow(9000) + 1000} units ({secrets.token_hex(4)})"
        findings.append(finding)
        for page in range(PAGES_A_CHAPTER):
            lines = [f"Chapter {chapter}: {subject}"] if page == 0 else []
            while len(lines) < _LINES_A_PAGE:
                lines.append(" ".join(secrets.choice(_WORDS) for _ in range(9)) + ".")
            if page == PAGES_A_CHAPTER - 1:
                lines[-1] = f"Finding: {finding}"
            pages.append(lines)
    return Report(_pdf(pages), tuple(findings))


def _pdf(pages: list[list[str]]) -> bytes:
    count = len(pages)
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        text = (
            "BT /F1 11 Tf 15 TL 60 780 Td\n" + "".join(f"({_escaped(line)}) Tj T*\n" for line in lines) + "ET"
        )
        stream = zlib.compress(text.encode("latin-1"))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (5 + 2 * number)
        )
        objects.append(
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(stream), stream)
        )
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def _escaped(line: str) -> str:
    return line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
