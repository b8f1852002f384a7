"""The results for people, and the last line for machines."""

import os
import pstats
import statistics
import sys
from pathlib import Path

from tests.bench import world
from tests.bench.measuring import Bench, Figures, median_ratio

UNDISTURBED = 0.85
"""Of its core under load. Below that, wall-clock figures say more about the machine than about us."""


def say(text: str) -> None:
    """Progress, for the person who waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _row(name: str, figures: Figures) -> str:
    kept_cpu = f"{statistics.median(figures.kept_cpu) * 1000:7.2f}" if figures.kept_cpu else "      -"
    fresh_cpu = f"{statistics.median(figures.fresh_cpu) * 1000:7.2f}" if figures.fresh_cpu else "      -"
    added = f"{statistics.median(figures.added) * 1000:7.2f}" if figures.added else "      -"
    peak = f"{figures.peak / 2**20:6.0f}" if figures.peak else "     -"
    median = statistics.median
    return (
        f"{name:<15}"
        f"{median(figures.kept_rate):8,.0f}{median(figures.kept_p50) * 1000:8.2f}"
        f"{median(figures.kept_p99) * 1000:8.2f}{kept_cpu} |"
        f"{median(figures.fresh_rate):7,.0f}{median(figures.fresh_p50) * 1000:8.1f}"
        f"{median(figures.fresh_p99) * 1000:8.1f}{fresh_cpu} |{added} |{peak}"
    )


def print_results(bench: Bench, verdict: dict[str, float], audited: int) -> None:
    """The table, the bars, and the machine-readable line."""
    figures = bench.figures
    stock, bare, ours = (figures[target.proxy.name] for target in bench.targets)
    print()
    print(
        f"HTTPS in and out, 1 KiB answers, {world.CONNECTIONS} connections, "
        f"{world.CONNECTIONS * world.HANDLES_A_CONNECTION} handles; "
        f"medians of {len(ours.kept_rate)} interleaved rounds of {bench.seconds:g} s; "
        f"proxies on one core, load and origin on another; load average {os.getloadavg()[0]:.1f}."
    )
    print(
        f"Coatcheck: {world.RULES} rules, {world.CREDENTIALS} credentials, {world.SESSIONS:,} live sessions, "
        "audit on disk, scrubbing, metrics, secrets from OpenBao."
    )
    print()
    print(f"{'':15}{'kept connections':^31} |{'new connection each':^30} | added |  peak")
    print(
        f"{'':15}{'req/s':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU s':>7} |"
        f"{'req/s':>7}{'p50 ms':>8}{'p99 ms':>8}{'CPU s':>7} |{'p50 ms':>7} |{'MiB':>6}"
    )
    print(f"{'':15}{'':24}{'/1,000':>7} |{'':23}{'/1,000':>7} |{'':>7} |")
    print(_row("no proxy", bench.ceiling))
    for target in bench.targets:
        print(_row(target.proxy.name, figures[target.proxy.name]))
    print()
    vs_mitmdump = median_ratio(ours.kept_rate, stock.kept_rate)
    vs_bare = median_ratio(ours.kept_rate, bare.kept_rate)
    newconn = median_ratio(ours.fresh_rate, stock.fresh_rate)
    added = statistics.median(ours.added) * 1000
    verdict_us = verdict["verdict_us"]
    bars = (
        ("kept connections, against stock mitmdump", f"{vs_mitmdump:.2f} ×", "≥ 1.9 ×", vs_mitmdump >= 1.9),
        ("kept connections, against the bare Master", f"{vs_bare:.2f} ×", "≥ 0.95 ×", vs_bare >= 0.95),
        ("new connections, against stock mitmdump", f"{newconn:.2f} ×", "≥ 1.8 ×", newconn >= 1.8),
        ("added p50 for one sequential client", f"{added:.2f} ms", "≤ 1.0 ms", added <= 1.0),
        ("a verdict on a cached handle", f"{verdict_us:.0f} µs", "≤ 60 µs", verdict_us <= 60),
        (
            f"resident memory after {bench.grown_over:,} requests",
            f"{bench.growth:+.1%}",
            "< 5 %",
            bench.growth < 0.05,
        ),
    )
    for what, reached, bar, ok in bars:
        print(f"  {what:<46}{reached:>10}   {bar:<9} {'reached' if ok else 'MISSED'}")
    print()
    cpu = (
        median_ratio(stock.kept_cpu, ours.kept_cpu),
        median_ratio(bare.kept_cpu, ours.kept_cpu),
        median_ratio(stock.fresh_cpu, ours.fresh_cpu),
    )
    print(f"  By CPU a request the three ratios are {cpu[0]:.2f} ×, {cpu[1]:.2f} × and {cpu[2]:.2f} ×.")
    share = min(statistics.median(figures.kept_share) for figures in (stock, bare, ours))
    if share < UNDISTURBED:
        print(
            f"  NOTE: a proxy had only {share:.0%} of its core under load. Other programs are running:"
            " believe the CPU ratios, not requests per second and latencies."
        )
    print(f"  A handle seen for the first time costs {verdict['first_handle_us']:.0f} µs more, once.")
    print(
        f"  All that Coatcheck itself does for a request, records included: {verdict['request_us']:.0f} µs."
    )
    print(f"  Audit records = requests = {audited:,}.")
    print()
    print(
        f"ratio vs_mitmdump={vs_mitmdump:.2f} vs_bare={vs_bare:.2f} newconn_vs_mitmdump={newconn:.2f} "
        f"added_ms={added:.2f} verdict_us={verdict_us:.1f} rss_growth={bench.growth * 100:.1f}%"
    )


def print_profile(stats: Path, requests: int) -> None:
    """The forty functions with the most time of their own, then with everything below them."""
    print(f"{requests} requests while measured; the profile also holds start-up and 1,000 session openings")
    figures = pstats.Stats(str(stats))
    figures.strip_dirs().sort_stats("tottime").print_stats(40)
    figures.sort_stats("cumulative").print_stats(60)
