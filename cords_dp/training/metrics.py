"""What is measured after an epoch, by CORDS' names, with the words of its log."""

from __future__ import annotations

LABELS = {
    "val_loss": "Validation Loss",
    "val_acc": "Validation Accuracy",
    "tst_loss": "Test Loss",
    "tst_acc": "Test Accuracy",
    "trn_loss": "Training Loss",
    "trn_acc": "Training Accuracy",
    "subtrn_loss": "Subset Loss",
    "subtrn_acc": "Subset Accuracy",
    "time": "Timing",
}
