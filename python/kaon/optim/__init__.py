"""Optimizers: compiled updates behind the interface of `torch.optim`.

`Muon`, `PeriodicRowwiseMuon` and `AdamW` each take a whole model; `kaon.optimizer(update)` makes such a class of a
user's own update. `docs/optimizers.md` describes them, `docs/adding-an-optimizer.md` how to add one.
"""

from .base import KaonOptimizer
from .optimizers import AdamW, Muon, PeriodicRowwiseMuon, UpdateOptimizer, optimizer
from .plan import Plan, PlanKernel, PlanRow
from .rules import ParameterInfo, Rule, default_rules, elementwise_rules, matrix_rules
from .views import View

__all__ = [
    "AdamW",
    "KaonOptimizer",
    "Muon",
    "ParameterInfo",
    "PeriodicRowwiseMuon",
    "Plan",
    "PlanKernel",
    "PlanRow",
    "Rule",
    "UpdateOptimizer",
    "View",
    "default_rules",
    "elementwise_rules",
    "matrix_rules",
    "optimizer",
]
