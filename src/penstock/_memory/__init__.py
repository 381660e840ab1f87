"""The memory of batches: slabs, leases, the layout of a batch in its slab, and guests (libraries such as torch)."""
