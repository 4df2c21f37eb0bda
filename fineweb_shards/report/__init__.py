"""Make `report.html`, the page about an output folder: facts, tables and the template."""
