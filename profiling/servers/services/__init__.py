"""What runs inside the servers under test, written as those projects' own examples are.

Each program is started by the adapter of its name. What happens between the bytes and the answer is
the same for all: `classifiers.py`.
"""
