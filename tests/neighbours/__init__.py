"""Programs beside a training run: `training`, another user's `stranger`, and `sibling` of the same user.

`tests/faults/test_neighbour.py` starts them.
"""
