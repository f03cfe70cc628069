"""Draws a roofline as SVG by hand: speed over operations per byte, both logarithmic, under the slope of
the read bandwidth and the roofs of the multiply instructions, with a mark for each engine and row.
"""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1000, 740
LEFT, RIGHT, TOP, BOTTOM = 90, 970, 70, 670  # of the plot
NAMES_HEIGHT = 180  # at the foot of the plot, for the names of rows
NAME_STEP = 15
ROOF_STEP = 24  # how close roofs may lie with the lower one's name between them
INK, FAINT = "#222", "#ddd"
MARKS = {"oato-run": ("#0b7a4b", "circle"), "llama.cpp": ("#c8442f", "square"), "ik_llama.cpp": ("#3459a8", "triangle")}
ROOFS = {"int8": "int8", "int16": "int16", "f32": "float32", "bf16": "bf16"}


def text(x, y, words, size=13, anchor="start", fill=INK, turn=0):
    turned = f' transform="rotate({turn:.1f} {x:.1f} {y:.1f})"' if turn else ""
    halo = 'stroke="white" stroke-width="4" paint-order="stroke"'  # what it crosses does not cross it out
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" {halo}{turned}>'
            f"{escape(words)}</text>")


def line(x1, y1, x2, y2, stroke=INK, width=1.0, dash=""):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
            f'stroke-width="{width}"{dashed}/>')


def mark(engine, x, y):
    colour, shape = MARKS[engine]
    style = f'fill="{colour}" fill-opacity="0.85" stroke="white" stroke-width="0.8"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" {style}/>'
    if shape == "square":
        return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" {style}/>'
    return f'<path d="M{x:.1f} {y - 6.5:.1f} l6.5 11.5 h-13 z" {style}/>'


def spread(wanted, step, low, high):
    """Positions in the order of `wanted`, near them, at least `step` apart, within [low, high]."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    at = [0.0] * len(wanted)
    edge = low - step
    for i in order:
        edge = at[i] = max(wanted[i] - step * 0.5, edge + step)
    edge = high + step
    for i in reversed(order):
        edge = at[i] = min(at[i], edge - step)
    return at


def operations(value):
    return f"{value / 1e12:g} TOP/s" if value >= 1e12 else f"{value / 1e9:g} GOP/s"


def roofline(title, bandwidth, roofs, rows):
    """rows: [{"label", "x": operations per byte, "y": {engine: [operations per s]}}]."""
    speeds = [v for r in rows for values in r["y"].values() for v in values if v > 0]
    x_low, x_high = min(r["x"] for r in rows) / 2, max(max(r["x"] for r in rows), max(roofs.values()) / bandwidth) * 2
    y_low, y_high = min(speeds) / 1.5, max(list(roofs.values()) + speeds) * 1.6

    def px(x):
        return LEFT + (RIGHT - LEFT) * math.log(x / x_low) / math.log(x_high / x_low)

    def py(y):
        return BOTTOM - NAMES_HEIGHT - (BOTTOM - NAMES_HEIGHT - TOP) * math.log(y / y_low) / math.log(y_high / y_low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="DejaVu Sans, Verdana, sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 30, title, 17)]
    # The grid: powers of two to the right; 1, 2, 5 of each decade upwards.
    for n in range(math.ceil(math.log2(x_low)), math.floor(math.log2(x_high)) + 1):
        x = px(2.0 ** n)
        out += [line(x, TOP, x, BOTTOM, FAINT), text(x, BOTTOM + 18, f"{2.0 ** n:g}", 12, "middle")]
    for n in range(math.floor(math.log10(y_low)), math.floor(math.log10(y_high)) + 1):
        for v in (10.0 ** n, 2 * 10.0 ** n, 5 * 10.0 ** n):
            if y_low <= v <= y_high:
                out += [line(LEFT, py(v), RIGHT, py(v), FAINT), text(LEFT - 8, py(v) + 4, operations(v), 12, "end")]
    out += [f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" fill="none" stroke="{INK}"/>',
            text((LEFT + RIGHT) / 2, BOTTOM + 42, "operations per byte that must be read", 14, "middle")]
    # The slope, up to the highest roof, and the roofs from where they meet it.
    top = max(roofs.values())
    x1 = max(x_low, y_low / bandwidth)
    x2 = top / bandwidth
    out.append(line(px(x1), py(bandwidth * x1), px(x2), py(top), INK, 2))
    slope = math.degrees(math.atan2(py(top) - py(bandwidth * x1), px(x2) - px(x1)))
    middle = math.sqrt(x1 * x2)
    out.append(text(px(middle) - 7, py(bandwidth * middle) - 7, f"read bandwidth {bandwidth / 1e9:.1f} GB/s", 13,
                    "middle", INK, slope))
    above = -math.inf
    for kind, roof in sorted(roofs.items(), key=lambda r: -r[1]):
        beneath = py(roof) - above < ROOF_STEP  # the name of the roof above is between them
        above = py(roof)
        out += [line(px(roof / bandwidth), py(roof), RIGHT, py(roof), INK, 2),
                text(px(roof / bandwidth) + 18, py(roof) + (16 if beneath else -6),
                     f"{ROOFS.get(kind, kind)} {roof / 1e12:.2f} TOP/s", 13)]
    # Each row: a thread from its marks down to its name.
    names = spread([px(r["x"]) for r in rows], NAME_STEP, LEFT + 8, RIGHT - 8)
    foot = BOTTOM - NAMES_HEIGHT + 14
    for row, at in zip(rows, names):
        x = px(row["x"])
        lowest = max(py(v) for values in row["y"].values() for v in values)
        out += [line(x, lowest, x, foot, "#999", 0.7, "2 2"), line(x, foot, at, foot + 12, "#999", 0.7, "2 2"),
                text(at + 4, foot + 16, row["label"], 11, "end", INK, -90)]
    for engine in reversed(list(MARKS)):
        out += [mark(engine, px(r["x"]), py(v)) for r in rows for v in r["y"].get(engine, ())]
    x = LEFT
    for engine in MARKS:
        if any(engine in r["y"] for r in rows):
            out += [mark(engine, x + 8, 50), text(x + 22, 55, engine, 14)]
            x += 150
    return "\n".join(out + ["</svg>", ""])
