"""The site: pages from docs/, and the reference from docstrings. `make docs` builds it into build/site."""
