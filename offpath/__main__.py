"""`python -m offpath` is the console command `offpath`."""

from offpath.cli import run

if __name__ == "__main__":
    run()
