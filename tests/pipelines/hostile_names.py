"""Names of classes and files that could break a page: markup, 10,000 characters, directions."""

HOSTILE = [
    "<script>alert(1)</script>",
    "x" * 10_000,
    "\u202eright to left \u05d0\u05d1",
    '" onerror="alert(1)',
    "$\\frac{1}{0}$ line\nbreak\x00\x1b[31m",
    "{{ 7 * 7 }}{% raw %}",
    "",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u732b\u1f600",
    "&lt;b&gt; ]]> <!-- -->",
    "</svg></style><style>*{display:none}</style>",
]
