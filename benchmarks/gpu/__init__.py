"""The one script for a machine with a GPU: correctness, a training run, compute-sanitizer, and timings.

`pack.sh` compiles everything that it runs, on any machine; `run.sh` runs it, on a card or on fakes. See
benchmarks/README.md.
"""
