# quick
# launch: python SCRIPT
# launch: python -W error SCRIPT
"""The first thing that I try: lists, arrays, a class, workers, resume."""

import json

import numpy as np

import penstock

loader = penstock.DataLoader(np.arange(100), batch_size=8, shuffle=True, num_workers=2, seed=0)
batches = iter(loader)
first = [next(batches).tolist() for _ in range(5)]
state = json.loads(json.dumps(loader.state_dict()))
rest = [batch.tolist() for batch in batches]
loader.close()

again = penstock.DataLoader(np.arange(100), batch_size=8, shuffle=True, num_workers=0, seed=0)
again.load_state_dict(state)
assert [batch.tolist() for batch in again] == rest

letters = penstock.DataLoader(list("penstock"), batch_size=4)
assert list(letters) == [list("pens"), list("tock")]
print(repr(loader), loader.stats().verdict if hasattr(loader.stats(), "verdict") else "")
