"""Some lines of compare.sh: rounds of three JSON lines of ISA-L and three of Cairn (encode, decode-1, decode-m) come in; for
each work the medians of the rates and of the ratios of the rounds go out."""
import json
import statistics
import sys

WORKS = ["encode", "decode-1", "decode-m"]
rows = [json.loads(line) for line in sys.stdin]
rounds = [rows[i : i + 6] for i in range(0, len(rows), 6)]


def rate(row):
    return 1 / row["cpu_s_per_gb"]


for work, name in enumerate(WORKS):
    theirs = [rate(one[work]) for one in rounds]
    ours = [rate(one[3 + work]) for one in rounds]
    ratios = sorted(our / their for our, their in zip(ours, theirs))
    case = "".join(text.ljust(10) for text in sys.argv[1:]) + name.ljust(10)
    print(
        f"{case}{rounds[0][3]['kernel']:<12} isa-l {statistics.median(theirs):6.2f}  cairn {statistics.median(ours):6.2f} GB/s"
        f"  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        flush=True,
    )
