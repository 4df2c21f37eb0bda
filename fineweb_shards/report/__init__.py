"""The page `report.html` about a folder: its facts, the values it shows, its charts and its template.

May import everything except `run` and `commands`.
"""
