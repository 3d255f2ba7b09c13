"""Charts and HTML pages: plain data in, bytes out. Imports nothing of the rooms that have something to report.

`figure` is the matplotlib figure that all charts are drawn in, `page` renders the templates, and `theme` has the colors
of both. A chart is shown as SVG in a page, which follows its light or dark theme, and as PNG in MLflow and notebooks.
"""
