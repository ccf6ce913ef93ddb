"""torch's compiler is imported by who uses it, and works for them."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
import torch
import cords_dp.training.trainer
from cords_dp.lazy_compiler import compiler_deferred
from cords_dp.lazy_compiler import torchvision_networks
torchvision_networks()
from torchvision.ops.roi_align import is_compile_supported

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=1.0)
weight.grad = torch.ones(2)
with compiler_deferred():
    optimizer.step()
optimizer.zero_grad()
assert weight.tolist() == [0.0, 0.0]
assert "torch._dynamo" not in sys.modules, "a private run does not need the compiler"

with compiler_deferred():  # another thread may want the compiler just then
    import torch._dynamo as found
    assert callable(found.disable)
assert isinstance(is_compile_supported("cpu"), bool)  # who asks gets the real answer, from the real compiler
assert sys.modules["torch._dynamo"].__file__ is not None
assert torch.compile(lambda x: x * 2, backend="eager")(torch.ones(1)).item() == 2.0
weight.grad = torch.ones(2)
with compiler_deferred():
    optimizer.step()
optimizer.zero_grad()
assert weight.tolist() == [-1.0, -1.0]
print("fine")
"""


def test_the_compiler_waits_until_somebody_wants_it():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("fine"), done.stderr[-2000:]
