"""The parts that every measurement shares: host, results, statistics."""
