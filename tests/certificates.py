"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.backends._ray.handshake import Tls


def new_certificate(folder: Path) -> Tls:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=penstock", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this machine has no openssl")
    return Tls(str(certificate), str(key), str(certificate))


def environment(tls: Tls) -> dict[str, str]:
    """As it is on the nodes of a cluster that uses these files."""
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    return {"RAY_USE_TLS": "1", **dict(zip(names, tls, strict=True))}
