"""One epoch: from the plan's steps to the batches that the caller gets."""
