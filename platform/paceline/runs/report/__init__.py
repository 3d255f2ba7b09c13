"""`paceline report`: what a run or a sweep came to, as one HTML file that needs nothing else.

folder -> story (the contents, see `sweep_story.py`, `run_story.py`) -> sections (HTML) -> page (one file)
"""
