"""The prediction log: records every answered request once, without making any request wait."""
