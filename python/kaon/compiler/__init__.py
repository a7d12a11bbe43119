"""From the source of an update to MLIR text: source -> AST -> subset check -> emission."""
