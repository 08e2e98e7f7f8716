"""The prediction log's trials under a real TorchServe: kills, an outage, and what it costs.

Everything is real: TorchServe, SIGKILL, S3's protocol over HTTP. Comparisons take turns in one run,
because only ratios of one run mean something on a machine that does other things.
"""
