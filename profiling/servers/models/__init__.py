"""Code that runs inside the servers under test; each server's own file imports from here."""
