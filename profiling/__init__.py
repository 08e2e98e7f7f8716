"""Measures: workloads, load, limits, comparisons and their reports."""
