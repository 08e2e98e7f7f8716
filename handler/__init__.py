"""The code that ships in the .mar and runs for every request; start reading at `classifier.py`."""
