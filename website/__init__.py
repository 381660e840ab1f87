"""The site: pages from docs/, the reference from docstrings, built by Zensical. `make docs` builds it into build/site."""
