"""What is sent and by whom: photographs, generators, windows."""
