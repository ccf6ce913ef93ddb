"""Which strategy, which share of the records, how many epochs? A rule, checked against what was measured.

1. **Strategy.** Where training and validation data are known to be alike, FullDP: selection cannot gain. Otherwise, or
   where nobody knows, GLISTERDP with ``align``: where they are alike after all it draws uniformly and costs a per
   cent or two of noise; where classes are cut or labels wrong it gains points.
2. **Share k.** As many gradients an epoch as the compute allows, up to half of the records where records are selected
   (nothing above was measured). Accuracy grows with k or stays.
3. **Epochs.** Forty, or as many as the compute allows: from five to forty, accuracy rose with every doubling at every ε
   that was tried (1, 3, 8; docs/results/epochs-mnist.csv), for noise grows with no more than the root of the steps.

``python benchmarks/advice.py`` says in how many of the measured settings (docs/results/*.csv) the rule's choice comes
within half a point of the best measured one; `tests/planning/test_advice.py` holds it to that. The rule was written
with these tables in view: that is a fit, not a forecast for other data.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIKE, UNKNOWN, DIFFERENT = "alike", "unknown", "different"
SHIFTS = (ALIKE, UNKNOWN, DIFFERENT)
_MOST_SELECTED = 0.5
_EPOCHS = 40


@dataclass(frozen=True)
class Advice:
    """What the rule says. ``why``: in a sentence."""

    strategy: str
    mechanism: str | None
    share: float
    epochs: int
    why: str

    def text(self) -> str:
        how = f"{self.strategy} with mechanism {self.mechanism}" if self.mechanism else self.strategy
        return f"Advice: {how}, k = {self.share:g} of the records an epoch, {self.epochs} epochs. {self.why}"


def advise(compute: float, shift: str = UNKNOWN) -> Advice:
    """The rule. ``compute``: gradients an epoch that can be afforded, as a share of the records."""
    if shift == ALIKE:
        return Advice("FullDP", None, compute, _EPOCHS, "Where D and V are alike, selection cannot gain.")
    why = "Where D and V differ it gains points; where they are alike it draws uniformly, for a little noise."
    return Advice("GLISTERDP", "align", min(compute, _MOST_SELECTED), _EPOCHS, why)
