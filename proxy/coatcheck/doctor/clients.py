"""This shell's clients: whether the trust variables in it lead to our CA as it is now."""

from pathlib import Path

from cryptography import x509

from coatcheck.certificates.authority import CERTIFICATE_FILE
from coatcheck.certificates.client_environment import JAVA_OPTIONS
from coatcheck.certificates.trust import BUNDLE_FILE, CA_FILE
from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning

TRUST_VARIABLES = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "PERL_LWP_SSL_CA_FILE",
    "HTTPLIB2_CA_CERTS",
    "npm_config_cafile",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
)
MOST_BYTES = 4 << 20
"""As large as a bundle of roots may be (`certificates.trust`)."""


def trust(subject: Subject) -> list[Finding]:
    """Variables of `coatcheck ca env` that name no file, or a bundle of an earlier CA of ours."""
    check = "client trust"
    named = {name: Path(value) for name in TRUST_VARIABLES if (value := subject.environment.get(name))}
    java = subject.environment.get(JAVA_OPTIONS, "")
    absent = sorted(name for name, path in named.items() if not path.is_file())
    if absent:
        return problem(
            check,
            f"{', '.join(absent)} name a file that does not exist ({named[absent[0]]})",
            'run eval "$(coatcheck ca env)" again, in the shell or image where they were set',
        )
    ours = [name for name, path in named.items() if path.name in (BUNDLE_FILE, CA_FILE)]
    if not ours:
        said = "Java's only" if "coatcheck" in java else "none"
        return ok(check, f"no trust variable of Coatcheck is set here ({said}): nothing to compare")
    current = _block(subject.settings.state_dir / "ca" / CERTIFICATE_FILE)
    if current is None:
        return warning(
            check,
            f"{', '.join(sorted(ours))} are set, and there is no CA to compare them with",
            "run as the daemon's user",
        )
    stale = sorted(name for name in ours if current not in _read(named[name]))
    if stale:
        return problem(
            check,
            f"{', '.join(stale)} lead to a bundle without the present CA ({named[stale[0]]})",
            'the CA was replaced: run eval "$(coatcheck ca env)" again,'
            " in the shell or image where they were set",
        )
    return ok(check, f"{len(ours)} variables lead to the present CA")


def _block(path: Path) -> bytes | None:
    """The certificate's PEM text as our files hold it."""
    try:
        certificate = x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        return None
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).strip()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return b""
