"""Draws held-out loss over bytes and over seconds as SVG: loss_picture.py ROWS PICTURE.

ROWS is the file of `tutti bench local-sgd --json`. A method is a point, with a bar from its smallest to its largest loss.
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 270, 240, 64, 34, 44
# The palette of Okabe and Ito, which color-blind readers can distinguish.
COLORS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999")


def methods_of(rows):
    """Returns {method: its rows}, in the order of the rows."""
    methods = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    return methods


def mean(rows, key):
    return sum(row[key] for row in rows) / len(rows)


def log_ticks(least, most):
    """Returns the powers of ten, and three times each, between both."""
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    return [tick for decade in decades for tick in (10**decade, 3 * 10**decade) if least <= tick <= most]


def panel(begin, methods, key, unit, label, with_scale):
    """Returns the lines of one diagram."""
    points = {name: max(mean(rows, key) / unit, 1e-3) for name, rows in methods.items()}
    losses = [row["held_out_loss"] for rows in methods.values() for row in rows]
    margin = max(0.05 * (max(losses) - min(losses)), 0.005)
    x0, x1 = min(points.values()) / 1.4, max(points.values()) * 1.4
    y0, y1 = min(losses) - margin, max(losses) + margin

    def x(value):
        return f"{begin + WIDTH * (math.log(value) - math.log(x0)) / (math.log(x1) - math.log(x0)):g}"

    def y(value, below=0):
        return f"{TOP + HEIGHT * (y1 - value) / (y1 - y0) + below:g}"

    yield f"<rect x='{begin}' y='{TOP}' width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='#888'/>"
    for tick in log_ticks(x0, x1):
        yield (f"<line x1='{x(tick)}' x2='{x(tick)}' y1='{TOP}' y2='{TOP + HEIGHT}' stroke='#ddd'/>"
               f"<text text-anchor='middle' x='{x(tick)}' y='{TOP + HEIGHT + 16}'>{tick:.0f}</text>")
    for i in range(5):
        value = y0 + (y1 - y0) * i / 4
        yield f"<line x1='{begin}' x2='{begin + WIDTH}' y1='{y(value)}' y2='{y(value)}' stroke='#ddd'/>"
        if with_scale:
            yield f"<text text-anchor='end' x='{begin - 6}' y='{y(value, 4)}'>{value:.2f}</text>"
    yield f"<text text-anchor='middle' x='{begin + WIDTH / 2:g}' y='{TOP + HEIGHT + 36}'>{label}</text>"
    for i, (name, rows) in enumerate(methods.items()):
        at, color = x(points[name]), COLORS[i % len(COLORS)]
        of_method = [row["held_out_loss"] for row in rows]
        loss = mean(rows, "held_out_loss")
        yield (f"<line x1='{at}' x2='{at}' y1='{y(min(of_method))}' y2='{y(max(of_method))}' stroke='{color}' "
               f"stroke-width='2'/><circle cx='{at}' cy='{y(loss)}' r='5' fill='{color}'>"
               f"<title>{name}: loss {loss:.4f}</title></circle>")


def picture(methods):
    second = LEFT + WIDTH + GAP
    legend = second + WIDTH + 20
    yield (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {legend + 130} {TOP + HEIGHT + 50}' "
           "font-family='sans-serif' font-size='12'>")
    yield "<rect width='100%' height='100%' fill='white'/>"
    yield f"<text x='{LEFT}' y='20'>held-out loss at the end</text>"
    yield from panel(LEFT, methods, "bytes_sent", 1e6, "MB sent by a rank", with_scale=True)
    yield from panel(second, methods, "seconds", 1, "seconds", with_scale=False)
    for i, name in enumerate(methods):
        row = TOP + 12 + 20 * i
        yield (f"<circle cx='{legend}' cy='{row - 4}' r='5' fill='{COLORS[i % len(COLORS)]}'/>"
               f"<text x='{legend + 12}' y='{row}'>{name}</text>")
    yield "</svg>"


def main():
    rows, file = sys.argv[1:]
    try:
        with open(rows) as stream:
            lines = list(picture(methods_of(json.load(stream))))
    except (ValueError, KeyError, TypeError) as error:
        print(f"tutti bench: cannot draw rows of `tutti bench local-sgd` from {rows}: {error!r}", file=sys.stderr)
        sys.exit(2)
    try:
        with open(file, "w") as stream:
            print(*lines, sep="\n", file=stream)
    except OSError as error:
        sys.exit(f"tutti bench: cannot write {file}: {error.strerror}")


if __name__ == "__main__":
    main()
