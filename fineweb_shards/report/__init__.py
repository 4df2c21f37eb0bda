"""Make `report.html`, the page about an output folder: facts, tables, charts and the template."""
