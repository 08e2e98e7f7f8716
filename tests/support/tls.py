"""A certificate for 127.0.0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_certificate(folder: Path, name: str = "door") -> tuple[Path, Path]:
    """Writes `<name>.pem` and `<name>.key` into a folder; valid for a day."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
