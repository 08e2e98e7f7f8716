"""What every measurement shares: host, results, statistics."""
