"""Memory that batches live in: layout (pure), slabs, leases, and the guests whose leaves slabs can hold."""
