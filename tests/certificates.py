"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.backends._ray.handshake import TlsFiles


def new_certificate(folder: Path, *addresses: str) -> TlsFiles:
    """A certificate that is its own authority, for these addresses and 127.0.0.1."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ",".join(["DNS:localhost", *(f"IP:{address}" for address in ("127.0.0.1", *addresses))])
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=penstock", "-addext", f"subjectAltName={names}"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this machine has no openssl")
    return TlsFiles(str(certificate), str(key), str(certificate))


def environment(tls: TlsFiles) -> dict[str, str]:
    """As it is on the nodes of a cluster that uses these files."""
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    return {"RAY_USE_TLS": "1", **dict(zip(names, tls, strict=True))}


def signed_certificate(folder: Path, address: str, days: int) -> TlsFiles:
    """A certificate for an address, such as "IP:127.0.0.1", of an authority of its own; expired if days is -1."""
    names = ("authority.pem", "key.pem", "asked.csr", "own.pem")
    authority, key, asked, certificate = (folder / name for name in names)
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    # From Python 3.13 on, a certificate must name the key of its authority, and an authority what its key is for.
    (folder / "names").write_text(f"subjectAltName={address}\nauthorityKeyIdentifier=keyid\n")
    signing = ["-CA", authority, "-CAkey", folder / "authority.key", "-CAcreateserial", "-extfile", folder / "names"]
    try:
        for command in (
            [
                *new,
                "-x509",
                "-subj",
                "/CN=authority",
                "-addext",
                "keyUsage=critical,keyCertSign",
                "-keyout",
                folder / "authority.key",
                "-out",
                authority,
            ],
            [*new, "-subj", "/CN=server", "-keyout", key, "-out", asked],
            ["openssl", "x509", "-req", "-in", asked, "-days", str(days), *signing, "-out", certificate],
        ):
            subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this machine has no openssl")
    return TlsFiles(str(certificate), str(key), str(authority))
