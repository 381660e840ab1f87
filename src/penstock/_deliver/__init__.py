"""The last stage: from the batch in its slab to the object that the caller gets."""
