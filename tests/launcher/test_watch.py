from __future__ import annotations

from proteus.launcher.watch import RestartBudget, RestartPolicy, find_death


def test_restarts_wait_longer_and_end_when_there_are_too_many() -> None:
    budget = RestartBudget(RestartPolicy(max_restarts=3, window_s=60.0, delay_step_s=0.5), clock=lambda: 100.0)
    assert [budget.take() for _ in range(5)] == [0.0, 0.5, 1.0, None, None]


def test_restarts_are_forgotten_after_the_window() -> None:
    now = 0.0
    budget = RestartBudget(RestartPolicy(max_restarts=1, window_s=60.0), clock=lambda: now)
    assert budget.take() == 0.0
    now = 59.0
    assert budget.take() is None
    now = 61.0
    assert budget.take() == 0.0


def test_death_names_the_models() -> None:
    stubs = {10: "llm", 11: "chat", 12: "llm"}
    assert find_death(1, stubs, alive=lambda pid: True) is None
    assert find_death(1, stubs, alive=lambda pid: pid != 10) == "a stub of 'llm' died"
    assert find_death(1, stubs, alive=lambda pid: pid == 1) == "a stub of 'chat', 'llm' died"
    assert find_death(1, stubs, alive=lambda pid: pid != 1) == "the server process died"
