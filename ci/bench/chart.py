"""A horizontal bar chart as a hand-made SVG: no library needed, readable on white and on dark."""
from html import escape

COLOURS = ["#2f6f9f", "#d9822b", "#5a9e4b", "#b0436e", "#7a6bb5", "#8a8a8a"]


def bars(path, title, unit, rows, digits=2):
    """rows: (label, [(kind, value), ...]); the values of a row are stacked, kinds share a colour."""
    kinds = list(dict.fromkeys(kind for _, parts in rows for kind, _ in parts))
    left, width, height, top = 150, 480, 24, 46 if len(kinds) < 2 else 66
    most = max((sum(v for _, v in parts) for _, parts in rows), default=0) or 1
    total_height = top + len(rows) * height + 12
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {total_height}" font-family="sans-serif" font-size="13">',
           f'<rect width="760" height="{total_height}" fill="#fff"/>',
           f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>']
    if len(kinds) > 1:
        x = 12
        for i, kind in enumerate(kinds):
            out.append(f'<rect x="{x}" y="38" width="11" height="11" fill="{COLOURS[i % len(COLOURS)]}"/>'
                       f'<text x="{x + 15}" y="48">{escape(kind)}</text>')
            x += 26 + 8 * len(kind)
    for n, (label, parts) in enumerate(rows):
        y, x = top + n * height, float(left)
        out.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        for kind, value in parts:
            w = width * value / most
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="18" fill="{COLOURS[kinds.index(kind) % len(COLOURS)]}"/>')
            x += w
        out.append(f'<text x="{x + 6:.1f}" y="{y + 14}">{sum(v for _, v in parts):.{digits}f} {escape(unit)}</text>')
    path.write_text("\n".join(out + ["</svg>", ""]))
