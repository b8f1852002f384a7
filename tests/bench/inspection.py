"""How fast an inspection searches: `python -m tests.bench.inspection FILE`, a guest's memory for example.

Prints the bytes that the file has (holes cost nothing), and the seconds of CPU time for them.
"""

import os
import sys
import time

from coatcheck.inspection.region import Region, Scan
from coatcheck.inspection.residue import Residues, Value
from tests.known_secrets import known_secret

CREDENTIALS = 10


def main() -> None:
    values = [Value(f"key-{n}", known_secret(f"bench {n}", length=48).encode()) for n in range(CREDENTIALS)]
    scan, region = Scan(Residues(values), lambda _: None), Region("file", "file")
    fd = os.open(sys.argv[1], os.O_RDONLY)
    began = time.process_time()
    scan.file(region, fd)
    seconds = time.process_time() - began
    print(f"{region.read / 1e6:.0f} MB in {seconds:.1f} s: {region.read / seconds / 1e6:.0f} MB/s")


if __name__ == "__main__":
    main()
