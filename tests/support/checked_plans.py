"""The first plan of a mechanism, checked against its contract, and views to plan for."""

from dataclasses import replace

import numpy as np

from dystop.control.plan_check import check_plan
from dystop.plan import Plan
from dystop.types import Mechanism, View
from support.strategies import random_view


def plan_of(mechanism: Mechanism, view: View) -> Plan:
    """Return the plan for a view in the first round."""
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    return plan


def one_active(seed: int, n: int = 9, **changes) -> tuple[View, int]:
    """Return a view in which exactly one worker has finished, and that worker."""
    view = random_view(seed, n, **changes)
    remaining_s = 1.0 + np.arange(n)
    first = int(np.flatnonzero(view.alive)[seed % view.alive.sum()])
    remaining_s[first] = 0.5
    return replace(view, remaining_s=remaining_s), first
