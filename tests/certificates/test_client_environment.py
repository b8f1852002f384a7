"""The variables: complete, unambiguous, and safe to paste."""

import json
import subprocess
from pathlib import Path

import dotenv
import pytest

from coatcheck.certificates.authority import CertificateError
from coatcheck.certificates.client_environment import (
    JAVA_OPTIONS,
    Style,
    Variable,
    environment,
    git_variables,
    joined,
    joined_with,
    proxy_variables,
    render,
    trust_environment,
    trust_variables,
)
from coatcheck.certificates.trust import TrustFiles

NASTY = Path("/srv/it's $(touch owned) `x` \\n & more")
PROXY = "http://127.0.0.1:8080"


def files(directory: Path) -> TrustFiles:
    return TrustFiles(directory / "ca.pem", directory / "bundle.pem", directory / "store.p12")


def test_adding_clients_get_the_ca_and_replacing_clients_the_bundle() -> None:
    """The other way round, Node would lose nothing but everybody else the public web."""
    variables = trust_environment(files(Path("/trust")))
    adding = {"NODE_EXTRA_CA_CERTS", "DENO_CERT"}
    assert {name for name, value in variables.items() if value == "/trust/ca.pem"} == adding
    for name in (
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "npm_config_cafile",
    ):
        assert variables[name] == "/trust/bundle.pem"


def test_the_proxy_is_named_in_both_cases_and_nothing_goes_past_it() -> None:
    """Clients read one or the other; an empty NO_PROXY replaces an inherited one."""
    variables = environment(proxy_variables(PROXY))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert variables[name] == variables[name.lower()] == PROXY
    assert variables["NO_PROXY"] == variables["no_proxy"] == ""
    assert "-Dhttp.nonProxyHosts=" in variables[JAVA_OPTIONS].split()


def test_exclusions_reach_every_client_in_its_own_notation() -> None:
    """Commas for most, bars for Java."""
    variables = environment(proxy_variables(PROXY, ("one.test", "two.test")))
    assert variables["NO_PROXY"] == variables["no_proxy"] == "one.test,two.test"
    assert "'-Dhttp.nonProxyHosts=one.test|two.test'" in variables[JAVA_OPTIONS]


def test_java_is_told_of_trust_and_proxy_in_one_variable() -> None:
    """The second group must not overwrite what the first said."""
    options = environment(trust_variables(files(Path("/trust"))), proxy_variables("http://[::1]:80"))[
        JAVA_OPTIONS
    ]
    assert "-Djavax.net.ssl.trustStore=/trust/store.p12" in options.split()
    assert "-Dhttps.proxyHost=[::1]" in options.split()


def test_two_values_for_one_variable_are_a_defect() -> None:
    """Silently the last would win."""
    with pytest.raises(ValueError, match="two values for A"):
        joined((Variable("A", "1", ""),), (Variable("A", "2", ""),))


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8080", "https://127.0.0.1:8080", "socks5://127.0.0.1:1", "http://127.0.0.1",
     "http://127.0.0.1:8080/path", "http://127.0.0.1:99999", "http://a b:1", "http://a\n:1", "http://[::1:80",
     "http://a'b:1", "http://127.0.0.1:8080?x", "http://127.0.0.1:8080#x"],
)  # fmt: skip
def test_an_address_that_clients_read_differently_is_refused(url: str) -> None:
    """Scheme, host and port, or an error that shows what it should look like."""
    with pytest.raises(CertificateError) as refusal:
        proxy_variables(url)
    assert "http://127.0.0.1:8080" in str(refusal.value) + refusal.value.hint


def test_a_bearer_origin_stands_in_the_proxys_address() -> None:
    """Clients turn it into Proxy-Authorization; Java is not given it, as it would take it for a host."""
    variables = environment(proxy_variables("http://session:ticket@127.0.0.1:8080"))
    assert variables["HTTPS_PROXY"] == "http://session:ticket@127.0.0.1:8080"
    assert "ticket" not in variables[JAVA_OPTIONS]


@pytest.mark.parametrize("name", ["*", "a,b", "a b", "", "a'b"])
def test_an_exclusion_that_is_not_a_plain_host_is_refused(name: str) -> None:
    """`*` would switch the proxy off."""
    with pytest.raises(CertificateError):
        proxy_variables(PROXY, (name,))


def test_pasted_into_a_shell_every_value_arrives_and_nothing_runs(tmp_path: Path) -> None:
    """Paths with quotes, dollars and backticks, through a real sh and back."""
    variables = joined(trust_variables(files(NASTY)), proxy_variables(PROXY))
    script = render(variables, Style.SH) + "env -0"
    done = subprocess.run(
        ["/bin/sh"], input=script, capture_output=True, text=True, cwd=tmp_path, env={}, check=True
    )
    seen = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert {name: seen[name] for name in environment(variables)} == environment(variables)
    assert list(tmp_path.iterdir()) == []


def test_json_and_dotenv_are_read_back_by_their_readers(tmp_path: Path) -> None:
    """Spaces and dollars included; what a .env file cannot carry is refused, not changed."""
    variables = joined(trust_variables(files(Path("/srv/a $HOME b"))), proxy_variables(PROXY))
    assert json.loads(render(variables, Style.JSON)) == environment(variables)
    (tmp_path / ".env").write_text(render((variables[0], variables[-1]), Style.DOTENV))
    assert (
        dotenv.dotenv_values(tmp_path / ".env", interpolate=True)["SSL_CERT_FILE"]
        == "/srv/a $HOME b/bundle.pem"
    )
    with pytest.raises(CertificateError, match="quote"):
        render((Variable("A", "it's", ""),), Style.DOTENV)


def test_fish_quotes_as_fish_reads() -> None:
    """Within single quotes fish knows two escapes: the quote's and the backslash's."""
    assert (
        render((Variable("A", "it's a\\b $x", "why"),), Style.FISH) == "# why\nset -gx A 'it\\'s a\\\\b $x'\n"
    )


def test_every_line_says_why_it_is_there() -> None:
    """One comment a variable, in each shell's notation."""
    variables = trust_variables(files(Path("/trust")))
    for style in (Style.SH, Style.FISH, Style.DOTENV):
        lines = render(variables, style).splitlines()
        assert len(lines) == 2 * len(variables)
        assert all(line.startswith("# ") and len(line) > 3 for line in lines[::2])


@pytest.mark.parametrize(
    "variable", [Variable("A", "a\nb", ""), Variable("A B", "x", ""), Variable("A", "\x1b", "")]
)
@pytest.mark.parametrize("style", Style)
def test_what_would_break_out_of_its_line_is_refused(variable: Variable, style: Style) -> None:
    """Control characters and names that are none."""
    with pytest.raises(CertificateError):
        render((variable,), style)


def test_java_paths_are_quoted_as_the_jvm_splits_them() -> None:
    """Space needs quotes, a quote needs the other kind, both kinds cannot be written."""

    def store(directory: str) -> str:
        return trust_environment(files(Path(directory)))[JAVA_OPTIONS]

    assert store("/a b").startswith("'-Djavax.net.ssl.trustStore=/a b/store.p12' ")
    assert store("/it's").startswith('"-Djavax.net.ssl.trustStore=/it\'s/store.p12" ')
    with pytest.raises(CertificateError):
        store('/it\'s "x"')


@pytest.mark.needs_debian("git")
def test_git_gets_a_helper_for_each_host_and_asks_no_other(tmp_path: Path) -> None:
    """git's own answer to a question for a password; a helper of the user's would give away a real one."""
    (tmp_path / ".gitconfig").write_text('[credential]\n\thelper = "!echo password=real; :"\n')
    logins = {"github.com": ("x-access-token", "GITHUB_TOKEN"), "git.example": ("me", "OTHER")}
    given = environment(git_variables(logins))
    env = given | {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "GITHUB_TOKEN": "cch_a$b\\c",
        "OTHER": "cch_2",
    }
    for host, said in (("github.com", "cch_a$b\\c"), ("git.example", "cch_2")):
        asked = subprocess.run(
            ["git", "credential", "fill"], input=f"protocol=https\nhost={host}\n\n", env=env, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        assert f"password={said}\n" in asked.stdout and "real" not in asked.stdout
    assert git_variables({}) == () == git_variables({"github.com": ("x; rm", "GITHUB_TOKEN")})


def test_options_of_the_users_stay_beside_ours() -> None:
    """Two programs that set NODE_OPTIONS, or add to git's configuration, must not undo each other."""
    given = environment(git_variables({"github.com": ("x", "T")})) | {"NODE_OPTIONS": "--require x", "A": "2"}
    user = {"NODE_OPTIONS": "--inspect", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "k", "A": "1"}
    merged = joined_with(user | {"GIT_CONFIG_VALUE_0": "v"}, given)
    assert (merged["NODE_OPTIONS"], merged["A"]) == ("--inspect --require x", "2")
    assert (merged["GIT_CONFIG_COUNT"], merged["GIT_CONFIG_KEY_0"], merged["GIT_CONFIG_VALUE_0"]) == (
        "3",
        "k",
        "v",
    )
    assert merged["GIT_CONFIG_VALUE_1"] == "" and merged["GIT_CONFIG_VALUE_2"].startswith("!f()")
    for broken in ("", "-1", "x", "9999999"):
        assert joined_with({"GIT_CONFIG_COUNT": broken}, given)["GIT_CONFIG_COUNT"] == "2"
