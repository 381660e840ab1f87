"""URLs: in two parts, shown without secrets, and in texts."""

from __future__ import annotations

from penstock._files.listed import translated
from penstock._remote import urls

ALLOWED = (ValueError,)
SECRET = "hunter2"


def seeds() -> list[bytes]:
    return [
        b"https://user:hunter2@host:8080/folder/a%20b.tar?sig=1&sv=2#x",
        b"s3://bucket/folder/*.tar?versionId=1",
        b"https://host.core.windows.net/c/x?sv=1&sig=a&st=2&sp=r",
        b"ftp://user:hunter2@host/file[0-9].tar",
        b"https:/user:hunter2@host/x and http://user:hunter2/x@host, file://user:hunter2@host",
        b"gs://bucket/**/[!a-]x?.tar",
    ]


def attack(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")[:2000]
    shown = urls.scrubbed(text, (SECRET,))
    assert SECRET not in shown
    urls.is_url(text)
    translated(text).fullmatch(text[:100])
    if urls.is_url(text):
        parts = urls.split(text)
        assert urls.identified(*parts) == urls.identified(*parts)
        urls.redacted(text)
