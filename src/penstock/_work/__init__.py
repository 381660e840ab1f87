"""Inside a worker: a task comes in, its samples are fetched, collated into the slab, reported."""
