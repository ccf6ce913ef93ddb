"""CORDS' GLISTER strategy with a private selector inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cords_dp.errors import MechanismError
from cords_dp.selection.session import Selections
from cords_dp.toolkit import GLISTERStrategy


class GLISTERDPStrategy(GLISTERStrategy):
    """What CORDS calls: `select` returns indices and weights of the pool that the plan's mechanism chooses.

    CORDS' own steps (exact gradients, greedy picks) are closed: nobody can reach a selection that was not paid for.
    """

    def __init__(self, *args: Any, selections: Selections, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.selections = selections

    def select(self, budget: int, model_params: dict[str, Any]) -> tuple[list[int], Tensor]:
        """``budget`` is CORDS' word for k."""
        if budget != self.selections.plan.shape.k:
            raise MechanismError(f"the plan pays for {self.selections.plan.shape.k} records, not {budget}")
        pool = self.selections.select(model_params)
        if pool.chances is not None:
            raise MechanismError("this mechanism draws records with chances of their own, which CORDS' loaders ignore")
        weights = torch.ones(len(pool)) if pool.weights is None else torch.from_numpy(pool.weights.copy()).float()
        return pool.indices.tolist(), weights

    def _closed(self, *_: Any, **__: Any) -> Any:
        raise MechanismError("CORDS' exact selection is not private; use select()")

    compute_gradients = eval_taylor_modular = greedy_algo = _update_grads_val = _closed
