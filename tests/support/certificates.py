"""Certificates for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Writes a certificate for 127.0.0.1 and its key, valid for a day."""
    certificate, key = folder / "door.pem", folder / "door.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=door"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return certificate, key
