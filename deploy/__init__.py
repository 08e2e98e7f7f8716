"""The same archive elsewhere: what `offpath export` writes, and files for containers and hosts."""
