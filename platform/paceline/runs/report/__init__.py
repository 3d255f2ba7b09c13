"""`paceline report`: the results of a run or a sweep as one HTML file that opens without a network.

folder -> contents (`run_report.py`, `sweep_report.py`) -> a template of `paceline.reports` -> one file
"""
