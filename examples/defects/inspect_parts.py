"""A controller of a line: sends photographs with the client library and prints the verdicts.

usage: python inspect_parts.py URL FILE...
"""

from __future__ import annotations

import sys

from offpath.client import Client, ServerError


def main(url: str, files: list[str]) -> None:
    """Prints one line per file; a refused image does not end the inspection."""
    with Client(url, model="defects", headers={"x-station": "7"}) as client:
        for file in files:
            name = file.rpartition("/")[2]
            try:
                prediction = client.predict(file)
                print(f"{name:14} {prediction.body.decode()}")
            except ServerError as error:
                print(f"{name:14} {error.code} {error.type}: {error.message}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(str(__doc__).strip())
    main(sys.argv[1], sys.argv[2:])
