"""The house colours: what became of tokens, where they came from, and lines side by side."""

COLOURS = {
    "cached": "#2a7f9e",
    "new": "#b9c4c9",
    "reread": "#d1495b",
    "cold": "#d1495b",
    "grid": "#7fb7be",
    "end": "#2a7f9e",
    "evicted": "#edae49",
    "unanchored": "#8d6a9f",
    "slow": "#7a7a4b",
    "replaced": "#d1495b",
    "disk.grid": "#66a182",
    "spill.end": "#3d5a6c",
    "spill.grid": "#c98bb9",
}
MORE = ("#2a7f9e", "#edae49", "#d1495b", "#66a182", "#8d6a9f", "#3d5a6c", "#c98bb9", "#7a7a4b")
