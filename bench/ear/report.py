"""Tables, CSV and charts of what was measured, as those of the simulator (`crates/ear`)."""
import csv, html, math

COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560.0, 300.0, 46.0, 30.0, 170.0, 44.0


def mean(values):
    return sum(values) / len(values) if values else float("nan")


def spread(values):
    """Twice the standard error of the mean; nothing is known of a single value."""
    if len(values) < 2:
        return float("nan")
    middle = mean(values)
    return 2 * math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))


def shown(values, digits=1):
    if not values:
        return ""
    error = spread(values)
    return f"{mean(values):.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def write_csv(path, rows):
    """`rows`: dictionaries; their keys in the order in which they come first are the columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def svg(path, title, axis, labels, series):
    """Lines over labels that are equally far apart. `series`: name and a value (or none) for each label; `published` is circles."""
    values = [value for _, line in series for value in line if value is not None] + [0.0, 1.0]
    unit = 10 ** math.floor(math.log10((max(values) - min(values)) / 4))
    step = next((times * unit for times in (5, 2, 1) if (max(values) - min(values)) / (times * unit) >= 4), unit)
    low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step) * step
    y = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)
    x = lambda at: LEFT + (WIDTH - LEFT - RIGHT) / len(labels) * (at + 0.5)
    text = lambda at, line, anchor, words: f'<text x="{at:.1f}" y="{line:.1f}" text-anchor="{anchor}">{html.escape(str(words))}</text>'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="#fff"/>', text(LEFT, 16, "start", title)]
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        out += [f'<path d="M{LEFT:g} {y(value):.1f}H{WIDTH - RIGHT:g}" stroke="#ddd"/>', text(LEFT - 6, y(value) + 4, "end", f"{value:g}")]
    every = math.ceil(len(labels) / 12)
    out += [text(x(at), HEIGHT - BOTTOM + 16, "middle", label) for at, label in enumerate(labels) if at % every == 0]
    out.append(text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 10, "middle", axis))
    for number, (name, line) in enumerate(series):
        colour, key, start = COLOURS[number % len(COLOURS)], TOP + 12 + 18 * number, WIDTH - RIGHT + 10
        points = [(x(at), y(value)) for at, value in enumerate(line) if value is not None]
        if name.startswith("published"):
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="none" stroke="{colour}" stroke-width="2"/>' for a, b in [*points, (start + 10, key)]]
        else:
            for path_of in (points, [(start, key), (start + 20, key)]):
                out.append('<path d="M' + "L".join(f"{a:.1f} {b:.1f}" for a, b in path_of) + f'" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(text(start + 26, key + 4, "start", name))
    with open(path, "w") as file:
        file.write("\n".join(out + ["</svg>"]) + "\n")
