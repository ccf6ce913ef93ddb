"""Released values of a run's selections, kept durably as soon as they are paid for."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cords_dp.accounting import Ledger
from cords_dp.errors import AccountingError
from cords_dp.files import write_durably
from cords_dp.late import late_module

if TYPE_CHECKING:
    import torch
else:  # planning needs no torch
    torch = late_module("torch")


class SelectionArchive:
    """One file per selection beside the ledger, which knows its digest.

    A run that is interrupted after a selection goes on with what was released; a file that is missing or was changed is
    refused, because drawing it again would be a second release. Without a folder nothing is kept.
    """

    def __init__(self, ledger: Ledger, folder: Path | None):
        self._ledger, self._folder = ledger, folder

    def find(self, name: str) -> dict[str, Any] | None:
        """The released values of a selection that is done, or None."""
        path = self._path(name)
        if name not in self._ledger.selected:
            if path is None or not path.is_file():
                return None
            self._ledger.end_selection(name, _digest(path.read_bytes()))  # killed between the two writes of `keep`
        if path is None or not path.is_file():
            raise AccountingError(f"selection {name} was paid for, but what it released is not there any more")
        content = path.read_bytes()
        if _digest(content) != self._ledger.selected[name]:
            raise AccountingError(f"what selection {name} released has been changed on disk")
        return torch.load(io.BytesIO(content), weights_only=True)

    def keep(self, name: str, state: dict[str, Any]) -> None:
        """Put released values on record. Only then may they be used."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        path = self._path(name)
        if path is not None:
            write_durably(path, buffer.getvalue())
        self._ledger.end_selection(name, _digest(buffer.getvalue()))

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"selection-{self._ledger.id}-{name}.pt"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
