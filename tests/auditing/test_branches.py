"""The audit of a run in branches: each step is tested as the event of the branch that was taken."""

from __future__ import annotations

from builders import make_plan

from cords_dp.auditing.canary_run import steps_taken


def test_steps_are_those_of_the_branch_that_was_taken():
    plan = make_plan(mechanism="align", n=400, k=100, n_validation=50, batch_size=20, epochs=3, select_every=1)
    for number, branch in enumerate(plan.branches):
        first, *later = steps_taken(plan, number)
        assert (first.rate, first.sigma) == (20 / 400, plan.sigma)
        assert {(event.rate, event.sigma) for event in later} == {(branch.rate, branch.sigma)}
    assert sum(event.count for event in steps_taken(plan, 0)) == plan.shape.steps
