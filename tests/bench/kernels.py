"""Which kernels take the time of a step.

    kernels.py FILE    of a CSV file of ncu --csv --print-units base --metrics gpu__time_duration.sum
"""

import csv
import sys

SHOWN = 14


def show_kernels(rows):
    """rows: (name, calls, milliseconds), in any order"""
    rows = sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])
    total = sum(row[2] for row in rows)
    calls = sum(row[1] for row in rows)
    print(f"{'ms':>10} {'share':>7} {'calls':>6}  {total:.3f} ms in {calls} calls")
    for name, count, milliseconds in rows[:SHOWN]:
        print(f"{milliseconds:10.3f} {100 * milliseconds / total:6.1f}% {count:6}  {name[:100]}")
    rest = rows[SHOWN:]
    if rest:
        print(f"{sum(row[2] for row in rest):10.3f} {'':7} {sum(row[1] for row in rest):6}  all others")


def read(path):
    """ncu's own messages stand before the table's head."""
    lines = open(path).read().splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        sys.exit(f"{path} holds no table: {' / '.join(lines[-3:])}")
    sums = {}
    for row in csv.DictReader(lines[head:]):
        if row["Metric Name"] != "gpu__time_duration.sum":
            continue
        count, milliseconds = sums.get(row["Kernel Name"], (0, 0.0))
        unit = row["Metric Unit"].replace("nsecond", "ns").replace("usecond", "us")
        scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0}[unit]
        value = float(row["Metric Value"].replace(",", ""))
        sums[row["Kernel Name"]] = count + 1, milliseconds + scale * value
    return [(name, *values) for name, values in sums.items()]


if __name__ == "__main__":
    show_kernels(read(sys.argv[1]))
