"""The code that runs inside a worker: it fetches the samples of a task and collates them into the slab."""
