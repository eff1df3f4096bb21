"""Benchmarks: ratios measured in one run, with exact counts beside them."""
