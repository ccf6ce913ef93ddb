"""The only module that imports Opacus.

Opacus imports torch's sharded tensors and models, which take most of a second and which nothing here uses. As long as
nobody has imported them no tensor is sharded, so their names can wait until they are used: by a process that shards
its model they are found as ever.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import torch.distributed

from cords_dp.late import LateName, standing_in

_SHARDED = (
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed._tensor",
    "torch.distributed._tensor.experimental",
    "torch.distributed._composable",
    "torch.distributed._composable.fsdp",
)


class _Sharded(types.ModuleType):
    """In the place of one of these modules until it is imported: then the import puts the module there."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if isinstance(sys.modules.get(self.__name__, self), _Sharded):
            return LateName(self.__name__, name, _imported)
        return getattr(sys.modules[self.__name__], name)


def _imported(module: str) -> Any:
    return importlib.import_module(module)


_absent = {name: _Sharded(name) for name in _SHARDED if name not in sys.modules}
with standing_in(_absent):
    from opacus.grad_sample import GradSampleModuleFastGradientClipping, prepare_module
    from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
    from opacus.layers import DPLSTM
    from opacus.layers.dp_rnn import DPLSTMCell
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.validators import ModuleValidator

for _name in ("tensor", "fsdp"):  # Opacus also looks for these two there, in every step
    if not hasattr(torch.distributed, _name):
        setattr(torch.distributed, _name, _absent[f"torch.distributed.{_name}"])

__all__ = [
    "DPLSTM",
    "DPLSTMCell",
    "DPOptimizer",
    "DPOptimizerFastGradientClipping",
    "GradSampleModuleFastGradientClipping",
    "ModuleValidator",
    "ft_compute_per_sample_gradient",
    "prepare_module",
]
