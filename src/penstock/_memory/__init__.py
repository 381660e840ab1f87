"""Memory that batches live in: layout (pure), arena, pool, lease."""
