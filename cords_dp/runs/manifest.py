"""Lists the files of a run with their SHA-256, for whoever is given the folder: ``cords-dp verify`` compares.

Released are digests of files that lie beside it and are released themselves. What is not to be shared (``private/``),
or is written by other programs (locks, tensorboard, Weights & Biases), is not listed.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from cords_dp.files import write_durably

MANIFEST = "files.json"
_UNLISTED = re.compile(r"(^|/)(private|wandb)/|\.lock$|\.tmp$|(^|/)events\.out\.tfevents|^files\.json$")


def write_manifest(folder: Path) -> None:
    """Write files.json. Call it when nothing else is going to be written into ``folder``."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    digests = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names if not _UNLISTED.search(n)}
    write_durably(folder / MANIFEST, json.dumps({"format": 1, "sha256": digests}, indent=1) + "\n")
