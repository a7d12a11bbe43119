"""The pipeline for a GPU, taken apart for tests."""

PER_PASS = (
    "kaon-simplify-pipeline",
    "func.func(kaon-narrow-products)",
    "canonicalize",
    "cse",
    "func.func(kaon-fold-norms)",
    "kaon-bucket",
    "func.func(kaon-fuse-kernels)",
    "kaon-fuse-product-epilogue",
    "kaon-outline-kernels",
    "kaon-plan-memory",
    "kaon-group-buckets",
)
"""The passes of kaon-cuda-pipeline, one by one after the simplification that all targets share."""
