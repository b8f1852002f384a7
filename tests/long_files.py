"""A pytest plugin: what takes long begins first, so that no worker is alone with it when all others are done.

Workers take whole files (`scripts/test`), by themselves those with the most tests first: the long ones, which
have few, would come last, one core would do them, and the other would stand still.
"""

import pytest

FIRST = (
    "tests/exhaustive/corpus/test_switches.py",
    "tests/exhaustive/demo/test_main.py",
    "tests/exhaustive/fail_closed/test_every_await.py",
    "tests/system/test_security_team_guide.py",
    "tests/exhaustive/planes/test_memory_is_flat.py",
    "tests/system/corpus/test_corpus.py",
    "tests/exhaustive/deploy/test_image.py",
    "tests/system/e2e/test_three_clones_of_one_agent_finish_three_tasks.py",
    "tests/system/e2e/test_a_sandbox_grows_for_a_build_and_shrinks_after_it.py",
    "tests/exhaustive/faults/test_killed_while_it_is_saved_or_forked_a_sandbox_leaves_nothing_half_alive.py",
    "tests/system/e2e/test_a_sleeping_sandbox_outlives_its_daemon.py",
    "tests/system/e2e/test_programs_that_know_of_no_proxy_work_inside.py",
    "tests/system/e2e/test_a_runaway_in_a_microvm_meets_its_limits.py",
    "tests/system/e2e/test_an_inspection_proves_that_nothing_is_there_to_steal.py",
    "tests/system/e2e/test_a_policys_filesystem_holds_in_a_microvm.py",
    "tests/system/durable/test_sizing_of_a_microvm.py",
    "tests/system/launcher/test_supervisor_of_a_microvm.py",
    "tests/system/durable/snapshots/test_machines.py",
    "tests/system/launcher/test_microvm.py",
    "tests/system/launcher/guest/test_machine.py",
    "tests/system/inspection/test_guest.py",
    "tests/system/cli/test_run.py",
    "tests/system/cli/test_daemon.py",
    "tests/system/planes/stock/test_script.py",
    "tests/system/e2e/test_the_five_minutes_of_the_readme_work.py",
    "tests/system/e2e/test_node_and_java_send_handles.py",
    "tests/system/e2e/test_the_agent_lives_inside.py",
    "tests/system/chart/test_a_rendered_pod_runs_here.py",
    "tests/system/chart/test_a_rendered_gateway_serves_here.py",
    # would be among the last, by their names
    "tests/system/kubernetes/test_sidecar.py",
    "tests/system/test_sandbox_guide.py",
    "tests/system/test_operators_guide.py",
)
"""The longest before shorter ones, as `scripts/test` tells at its end."""
_PLACE = {name: place for place, name in enumerate(FIRST)}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps a file's tests together, and all that are not listed in their order."""
    items.sort(key=lambda item: _PLACE.get(item.nodeid.partition("::")[0], len(FIRST)))
