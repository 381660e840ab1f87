"""Translates the options in `storage=` to obstore's names.

Also accepts the option names of boto3, s3fs, pyarrow, gcsfs and adlfs, and the names of environment variables.

obstore panics if the store's options include a connection option, or if a server's address is not a URL. This module
prevents both panics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from penstock._remote.urls import is_web, scheme_of


class _StoreKind(NamedTuple):
    prefixes: tuple[str, ...]  # of its environment variables
    others: Mapping[str, str]  # from the option names of other libraries to obstore's
    server: str  # the option for the server's URL
    variables: tuple[str, ...]  # environment variables for the server's URL
    known: tuple[str, ...]  # options to suggest in error messages; obstore may accept more


_ANONYMOUS = {"anon": "skip_signature", "anonymous": "skip_signature"}
_S3 = _StoreKind(
    ("aws_",),
    {
        **_ANONYMOUS,
        **dict.fromkeys(("endpoint_url", "endpoint_url_s3", "endpoint_override"), "endpoint"),
        **dict.fromkeys(("key", "access_key"), "access_key_id"),
        **dict.fromkeys(("secret", "secret_key"), "secret_access_key"),
        "token": "session_token",
        "region_name": "region",
        "bucket_name": "bucket",
        "requester_pays": "request_payer",
    },
    "endpoint",
    ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),  # as in boto3, the narrower one first
    (
        *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "skip_signature", "bucket"),
        *("default_region", "virtual_hosted_style_request", "request_payer", "metadata_endpoint", "imdsv1_fallback"),
        *("role_arn", "role_session_name", "web_identity_token_file", "unsigned_payload", "s3_express"),
        *("container_credentials_full_uri", "container_credentials_relative_uri", "sse_customer_key_base64"),
    ),
)
_GOOGLE = _StoreKind(
    ("google_",),
    {
        **_ANONYMOUS,
        **dict.fromkeys(("endpoint", "endpoint_url"), "base_url"),
        "service_account_path": "service_account",
    },
    "base_url",
    ("GOOGLE_BASE_URL",),
    (
        *("service_account", "service_account_key", "application_credentials", "bearer_token", "base_url", "bucket"),
        "skip_signature",
    ),
)
_AZURE = _StoreKind(
    ("azure_storage_", "azure_"),
    {
        **_ANONYMOUS,
        **dict.fromkeys(("access_key", "master_key"), "account_key"),
        "account": "account_name",
        "endpoint_url": "endpoint",
        "sas_token": "sas_key",
        "bearer_token": "token",
        "authority_id": "tenant_id",
        "identity_endpoint": "msi_endpoint",
    },
    "endpoint",
    ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    (
        *("account_name", "account_key", "sas_key", "token", "client_id", "client_secret", "tenant_id", "endpoint"),
        *("authority_host", "use_emulator", "use_azure_cli", "use_fabric_endpoint", "skip_signature"),
        *("msi_endpoint", "msi_resource_id", "object_id", "federated_token_file", "container_name"),
    ),
)
_WEB = _StoreKind((), {}, "", (), ())
_KINDS = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    "gs": _GOOGLE,
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), _AZURE),
    **dict.fromkeys(("http", "https"), _WEB),
}
SCHEMES = tuple(_KINDS)
"""The URL schemes that obstore reads."""

_SECONDS = ("timeout", "connect_timeout", "read_timeout", "pool_idle_timeout", "http2_keep_alive_timeout")
_CLIENT = {
    *_SECONDS,
    *("allow_http", "allow_invalid_certificates", "default_content_type", "default_headers", "user_agent"),
    *("http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_while_idle", "http2_max_frame_size"),
    *("pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes", "root_certificate"),
    "randomize_addresses",
}
_OF_CLIENT = {"headers": "default_headers"}  # fsspec's name
_NESTED = ("client_kwargs", "config")  # dicts of options, in s3fs and obstore
_INSTEAD = {  # options of other libraries without a counterpart in obstore: what to do instead
    "profile": "Profiles are not read. `aws configure export-credentials --profile NAME --format env` prints the "
    "variables of a profile: set these.",
    "connection_string": 'Pass its parts: {"account_name": ..., "account_key": ..., "endpoint": ...}.',
    "verify": 'For a private authority pass {"root_certificate": text of its file}, or set SSL_CERT_FILE.',
    "use_ssl": "The endpoint says whether the connection is encrypted: https:// or http://.",
}
_INSTEAD["profile_name"] = _INSTEAD["profile"]
_UNKNOWN = re.compile(r"Configuration key: '([^']*)'|Invalid key: (\S+?)\.?$|unexpected keyword argument '([^']*)'")


def named(url: str, storage: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Renames options to obstore's names.

    Connection options are moved into the dict "client_options". Options that are already renamed stay unchanged.
    """
    kind, scheme = _KINDS[scheme_of(url)], scheme_of(url)
    found: dict[str, Any] = {}
    client: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for given, value in _flat(storage):
        name = _plain(given, kind)
        name = kind.others.get(name, _OF_CLIENT.get(name, name))
        name, value = _by_value(given, name, value, kind)
        if not name:
            continue
        into = client if name in _CLIENT else found
        if into.get(name, value) != value:
            raise ValueError(f"storage has {spelt[name]!r} and {given!r}, which are the same option. Pass one.")
        into[name], spelt[name] = _checked(given, name, value, kind), given
    kept = {**_nested(storage, "client_options"), **client}
    if kept:
        found["client_options"] = kept
    # Read here, in the caller's process, so that workers on other machines use the same server.
    for name in kind.variables if kind.server and kind.server not in found else ():
        if name in environment:
            found[kind.server], spelt[kind.server] = environment[name], name
            break
    if kind.server in found and not is_web(str(found[kind.server])):
        said = spelt[kind.server]
        where = f"The variable {said}" if said in kind.variables else f"storage[{said!r}]"
        raise ValueError(
            f"{where} is not a URL. It names the server of {scheme}:// with its scheme, such as "
            "'https://minio.example' or 'http://127.0.0.1:9000'; leave it out for the cloud's own servers."
        )
    return found


def client_options(
    url: str, options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Returns the connection options, including those from environment variables such as AWS_ALLOW_HTTP."""
    kind = _KINDS[scheme_of(url)]
    # obstore itself reads these variables only without connection options, but penstock always passes some.
    found: dict[str, Any] = {
        name: environment[variable]
        for prefix in kind.prefixes
        for name in sorted(_CLIENT)
        if (variable := f"{prefix}{name}".upper()) in environment
    }
    found |= options.get("client_options", {})
    if any(str(each).startswith("http://") for each in (url, options.get(kind.server, ""))):
        found.setdefault("allow_http", True)
    return found


def unknown(url: str, error: Exception) -> ValueError | None:
    """Returns an error with a suggestion if obstore's `error` is about an unknown option, otherwise None."""
    found = _UNKNOWN.search(str(error).partition("\n")[0])
    if found is None:
        return None
    scheme = scheme_of(url)
    kind, name = _KINDS[scheme], next(filter(None, found.groups()), "")
    names = {*kind.known, *kind.others, *_CLIENT, *_OF_CLIENT}
    near = get_close_matches(name, sorted(names), 1)
    some = ", ".join([*kind.known[:6], "timeout", "proxy_url"] if kind.known else sorted(_CLIENT))
    hint = f"Did you mean {near[0]!r}?" if near else f"Some that exist: {some}."
    return ValueError(f"storage has the option {name!r}, which {scheme}:// does not have. {hint}")


def _flat(storage: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields all options that are not None, including those in nested dicts other than "client_options"."""
    for name, value in storage.items():
        if name in _NESTED:
            yield from _flat(_nested(storage, name))
        elif value is not None and name != "client_options":
            yield name, value


def _nested(storage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value: Any = storage.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"storage[{name!r}] must be a dict of options, but it is a {type(value).__name__}.")
    return value


def _plain(name: str, kind: _StoreKind) -> str:
    """Returns an option's name in lower case, without the prefix of an environment variable, such as `aws_`."""
    name = str(name).lower()
    return next((name.removeprefix(each) for each in kind.prefixes if name.startswith(each)), name)


def _by_value(given: str, name: str, value: Any, kind: _StoreKind) -> tuple[str, Any]:
    """Translates an option whose meaning depends on its value. Returns an empty name to drop the option."""
    if name == "verify" and isinstance(value, bool):
        return ("", None) if value else ("allow_invalid_certificates", True)
    if name == "use_ssl" and value is True:
        return "", None
    if kind is _GOOGLE and name == "token":
        if value != "anon":
            raise ValueError(
                "storage['token'] of gs:// can only be 'anon'. Pass the path of a key file as 'service_account', or "
                "a token as 'bearer_token'."
            )
        return "skip_signature", True
    if name in _INSTEAD and name not in kind.known:
        raise ValueError(f"storage has the option {given!r}, which penstock cannot use. {_INSTEAD[name]}")
    return name, value


def _checked(given: str, name: str, value: Any, kind: _StoreKind) -> Any:
    if name in _SECONDS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{round(value * 1000)}ms"
    if name not in kind.known or isinstance(value, (str, bool)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"storage[{given!r}] must be text, True or False, but it is of type {type(value).__name__}.")
