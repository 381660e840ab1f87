"""The tests that pass on every system: they need neither worker processes nor the cache on the disk nor `/proc`."""

from __future__ import annotations

_CONFORMANCE = """bad_samples batches dtype epochs errors formats images planted rng tables"""
_UNIT = """
    answers block_shuffle budget_loader caffe_lmdb checkpoint cli collate commit conformance course docs each
    explain fingerprints formats_cells formats_others formats_paths guests image_decode image_folder image_transform
    lmdbfile mixture mixture_loader modules own_backend pack plan_order plan_permutation plan_plan plan_samplers
    plan_seeds randomness ranks runner sample_limit scheduler share source_array source_dataset source_packed task
    terminal torch_collate torch_tensors trace tree turn uncounted_tar uses
"""
_LAWS = """
    block budget cast collate commit image loader_budget mixture mixture_loader packing pad plan prefetch rank
    scheduler stages window
"""

CORE = [
    *(f"tests/conformance/test_{name}.py" for name in _CONFORMANCE.split()),
    *(f"tests/unit/test_{name}.py" for name in _UNIT.split()),
    *(f"tests/laws/test_{name}_laws.py" for name in _LAWS.split()),
]
QUICK = [
    *("tests/conformance/test_epochs.py", "tests/conformance/test_rng.py", "tests/unit/test_cli.py"),
    *("tests/unit/test_commit.py", "tests/unit/test_image_folder.py", "tests/unit/test_share.py"),
    *("tests/unit/test_source_packed.py", "tests/unit/test_trace.py"),
]
