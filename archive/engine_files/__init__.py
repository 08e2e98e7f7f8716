"""Makes and checks the files of the archive's `engine/` folder, which an engine loads."""
