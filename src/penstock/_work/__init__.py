"""Inside a worker: fetches the samples of a task, and collates them into the slab."""
