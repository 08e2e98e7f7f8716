"""A declared table or chart in every format."""
