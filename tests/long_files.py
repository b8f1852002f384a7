"""A pytest plugin: what takes long begins first, so that no worker is alone with it when all others are done.

Workers take whole files (`scripts/test`), by themselves those with the most tests first: the long ones, which
have few, would come last, one core would do them, and the other would stand still.
"""

import pytest

FIRST = (
    "tests/corpus/test_switches.py",
    "tests/demo/test_main.py",
    "tests/fail_closed/test_every_await.py",
    "tests/test_security_team_guide.py",
    "tests/planes/test_memory_is_flat.py",
    "tests/corpus/test_corpus.py",
    "tests/deploy/test_image.py",
    "tests/e2e/test_three_clones_of_one_agent_finish_three_tasks.py",
    "tests/e2e/test_a_sandbox_grows_for_a_build_and_shrinks_after_it.py",
    "tests/faults/test_killed_while_it_is_saved_or_forked_a_sandbox_leaves_nothing_half_alive.py",
    "tests/e2e/test_a_sleeping_sandbox_outlives_its_daemon.py",
    "tests/e2e/test_programs_that_know_of_no_proxy_work_inside.py",
    "tests/e2e/test_a_runaway_in_a_microvm_meets_its_limits.py",
    "tests/e2e/test_an_inspection_proves_that_nothing_is_there_to_steal.py",
    "tests/e2e/test_a_policys_filesystem_holds_in_a_microvm.py",
    "tests/durable/test_sizing_of_a_microvm.py",
    "tests/launcher/test_supervisor_of_a_microvm.py",
    "tests/durable/snapshots/test_machines.py",
    "tests/launcher/test_microvm.py",
    "tests/launcher/guest/test_machine.py",
    "tests/inspection/test_guest.py",
    "tests/cli/test_run.py",
    "tests/cli/test_daemon.py",
    "tests/planes/stock/test_script.py",
    "tests/e2e/test_the_five_minutes_of_the_readme_work.py",
    "tests/e2e/test_node_and_java_send_handles.py",
    "tests/e2e/test_the_agent_lives_inside.py",
    "tests/chart/test_a_rendered_pod_runs_here.py",
    "tests/chart/test_a_rendered_gateway_serves_here.py",
    # would be among the last, by their names
    "tests/kubernetes/test_sidecar.py",
    "tests/test_operations_guide.py",
    "tests/test_sandbox_guide.py",
    "tests/test_operators_guide.py",
)
"""The longest before shorter ones, as `scripts/test` tells at its end."""
_PLACE = {name: place for place, name in enumerate(FIRST)}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps a file's tests together, and all that are not listed in their order."""
    items.sort(key=lambda item: _PLACE.get(item.nodeid.partition("::")[0], len(FIRST)))
