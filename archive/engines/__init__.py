"""Builds and checks the files that an engine needs beside the weights."""
