"""One line of compare.sh: pairs of JSON lines (ISA-L, Cairn) come in, their medians and the median of their ratios go out."""
import json
import statistics
import sys

rows = [json.loads(line) for line in sys.stdin]
pairs = list(zip(rows[0::2], rows[1::2]))
rate = lambda row: 1 / row["cpu_s_per_gb"]
theirs = statistics.median(rate(isal) for isal, _ in pairs)
ours = statistics.median(rate(cairn) for _, cairn in pairs)
ratios = sorted(rate(cairn) / rate(isal) for isal, cairn in pairs)
name = "".join(text.ljust(10) for text in sys.argv[1:])
print(
    f"{name} {pairs[0][1]['kernel']:<12} isa-l {theirs:6.2f}  cairn {ours:6.2f} GB/s  "
    f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
    flush=True,
)
