"""The memory of batches: slabs, leases, the layout of a batch in a slab, and guests (libraries such as torch)."""
