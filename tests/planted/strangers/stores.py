"""Options of stores, panics, and files of other formats."""

from __future__ import annotations

from tests.planted.bug import Bug

_OPTIONS = ("remote/test_options.py",)

BUGS: list[Bug] = [
    Bug(
        "http in the endpoint is not taken for a wish",
        "stores",
        "_remote/options.py",
        'found.setdefault("allow_http", True)',
        'found.setdefault("allow_http", False)',
        _OPTIONS,
        "AWS_ENDPOINT_URL=http://... of MinIO cannot be read.",
    ),
    Bug(
        "a variable comes before storage=",
        "stores",
        "_remote/objects.py",
        'if self._is_s3 and _S3_SERVER in os.environ and "endpoint" in settings:',
        "if False:",
        _OPTIONS,
        "The files of another server are read than the one in storage=.",
    ),
    Bug(
        "an option of connections among those of the store",
        "stores",
        "_remote/options.py",
        "into = client if name in _CLIENT else found",
        "into = found",
        _OPTIONS,
        'storage={"allow_http": True} is a panic of obstore.',
    ),
    Bug(
        "the server of a variable stays behind",
        "stores",
        "_remote/options.py",
        "found[kind.server], spelt[kind.server] = environment[name], name",
        "pass",
        _OPTIONS,
        "Workers on other machines read from the cloud, and two servers share their pieces.",
    ),
    Bug(
        "a panic is no error of its sample",
        "stores",
        "_work/samples.py",
        "            raise_ordinary(error)\n",
        "",
        ("faults/test_panics.py",),
        'on_error="skip" does not skip a sample in which a library of Rust panics.',
    ),
    Bug(
        "a panic ends torch's worker",
        "stores",
        "torch/_worker.py",
        "        error = ordinary(error)\n",
        "",
        ("faults/test_panics.py",),
        "A panic in a sample is reported as a lost worker.",
    ),
    Bug(
        "the region is not asked for",
        "stores",
        "_remote/objects.py",
        'region = self._region_at(asked[1]) if asked else ""',
        'region = ""',
        _OPTIONS,
        "The error says that the region is wrong, and not which one is right.",
    ),
    Bug(
        "no home folder",
        "stores",
        "_files/access.py",
        "        except RuntimeError:\n            warn_caller(",
        "        except ZeroDivisionError:\n            warn_caller(",
        ("remote/test_cache_folder.py",),
        "A container without a home folder cannot read remote files.",
    ),
    Bug(
        "an index is read as ids",
        "stores",
        "formats/_tokens.py",
        '    (0, b"MMIDIDX\\0\\0", "Megatron\'s index, the .idx of a .bin", _INDEX),\n',
        "",
        ("unit/test_formats_tokens.py",),
        "Tokens of a Megatron .idx gives samples of garbage.",
    ),
    Bug(
        "a scout dies without a word",
        "stores",
        "_cache/scout.py",
        'logging.getLogger("penstock").warning(',
        'logging.getLogger("penstock").debug(',
        ("unit/test_scout.py",),
        "Nothing is fetched ahead of time, and nothing says so.",
    ),
]
