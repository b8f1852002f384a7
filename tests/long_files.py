"""A pytest plugin: long files begin first, so that no worker still has one when the others are done.

Workers take whole files (`scripts/test`). xdist by itself begins with the files that have the most
tests. The long files have few: they would come last, and one core would be idle meanwhile.
"""

import pytest

FIRST = (
    "tests/exhaustive/corpus/test_switches.py",
    "tests/exhaustive/images/test_profiles.py",
    "tests/exhaustive/deploy/test_image.py",
    "tests/exhaustive/deploy/test_debian_package.py",
    "tests/exhaustive/deploy/test_containers.py",
    "tests/exhaustive/demo/test_main.py",
    "tests/exhaustive/cli/test_every_end_of_a_run.py",
    "tests/exhaustive/durable/test_a_claim_that_fails_leaves_nothing.py",
    "tests/exhaustive/e2e/test_clones_of_clones_and_earlier_lives_have_no_authority.py",
    "tests/exhaustive/e2e/test_somebody_on_call_sees_all_parts_of_the_page.py",
    "tests/exhaustive/planes/stock/test_stock_mitmdump_refuses.py",
    "tests/exhaustive/policy/file/test_every_change_that_a_review_stops.py",
    "tests/exhaustive/kubernetes/test_every_end_of_a_pods_session.py",
    "tests/exhaustive/e2e/test_two_more_lifecycles_of_one_launcher.py",
    "tests/exhaustive/redirect/test_every_way_past_a_hosts_rules.py",
    "tests/exhaustive/e2e/test_a_sandbox_that_grew_gives_back_what_it_does_not_use.py",
    "tests/exhaustive/cli/test_what_a_daemon_refuses_to_start_with.py",
    "tests/system/durable/test_pool.py",
    "tests/system/corpus/test_corpus.py",
    "tests/system/e2e/test_somebody_on_call_sees_what_happens_and_stops_it.py",
    "tests/system/planes/test_traps_parsing.py",
    "tests/system/fleet/test_follower.py",
    "tests/exhaustive/planes/test_memory_is_flat.py",
    "tests/exhaustive/faults/test_killed_alone_a_daemon_leaves_nothing_half_alive.py",
    "tests/exhaustive/fail_closed/test_every_await.py",
    "tests/system/planes/stock/test_script.py",
    "tests/system/e2e/test_three_clones_of_one_agent_finish_three_tasks.py",
    "tests/system/e2e/test_lifecycles_of_one_launcher.py",
    "tests/system/cli/test_daemon.py",
    "tests/exhaustive/faults/test_a_fault_at_each_step_leaves_nothing_half_alive.py",
    "tests/exhaustive/faults/test_killed_at_random_moments_the_daemon_forgets_nothing_it_answered.py",
    "tests/system/e2e/test_a_sandbox_grows_for_a_build_and_shrinks_after_it.py",
    "tests/system/e2e/test_the_page_cannot_be_turned_against_its_reader.py",
    "tests/system/cli/test_sandbox.py",
    "tests/system/planes/test_traps_connections.py",
    "tests/system/fleet/test_publisher.py",
    "tests/system/test_setup.py",
    "tests/system/control/test_openapi.py",
    "tests/system/planes/test_traps_answers.py",
    "tests/system/e2e/test_sessions_and_revocations_survive_kill_9.py",
    "tests/system/e2e/test_a_sandbox_of_the_warm_pool_is_nobodys_until_it_is_claimed.py",
    "tests/system/fleet/test_boards.py",
    "tests/system/planes/test_traps_fail_closed.py",
    "tests/exhaustive/faults/test_a_host_that_crashed_brings_its_sandboxes_back.py",
    "tests/exhaustive/faults/test_whatever_befalls_vault_requests_are_refused_and_then_served_again.py",
    "tests/system/e2e/test_the_page_of_one_daemon_shows_and_revokes_a_whole_fleet.py",
    "tests/system/secrets/test_vault_login.py",
    "tests/system/e2e/test_the_model_sdks_stream_through_the_proxy.py",
    "tests/system/control/page/test_watching.py",
    "tests/system/test_security_team_guide.py",
    "tests/system/e2e/test_programs_that_know_of_no_proxy_work_inside.py",
    "tests/system/e2e/test_a_daemon_is_replaced_and_its_streams_end_well.py",
    "tests/system/planes/test_revocation_is_fast.py",
    "tests/exhaustive/faults/test_a_full_disk_refuses_what_cannot_be_recorded_and_nothing_else_is_lost.py",
    "tests/exhaustive/e2e/test_a_sleeping_sandbox_outlives_its_daemon.py",
    "tests/system/cli/test_policy_bundle.py",
    "tests/system/secrets/test_vault_stalls.py",
    "tests/system/durable/test_sizing_of_a_microvm.py",
    "tests/exhaustive/faults/test_whatever_befalls_dns_it_is_a_refusal_and_passes.py",
    "tests/system/test_sandbox_guide.py",
    "tests/system/test_operators_guide.py",
)
"""Files of 13 seconds or more, the longest first. `scripts/test` lists the longest tests at its end."""
_PLACE = {name: place for place, name in enumerate(FIRST)}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps a file's tests together, and all that are not listed in their order."""
    items.sort(key=lambda item: _PLACE.get(item.nodeid.partition("::")[0], len(FIRST)))
