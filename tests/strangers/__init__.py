"""Whole programs as people write them who have read only a page of the docs.

Each file in `programs` is such a program: it stands on its own, knows nothing of this repository, and checks by
itself what its author would look at. It is copied to another folder and run there by a fresh interpreter. It must
exit with 0 within its time limit, write nothing to standard error, and leave no process behind.

Comments at the top of a program say how it is run:

    # launch: python SCRIPT                 the default; or torchrun, pytest, python -m MODULE, notebook
    # needs: torch jax                      packages that it imports: it is skipped where one is missing
    # seconds: 60                           its time limit, on a busy machine
    # quick                                 also part of `make test`; `make strangers` runs all

A notebook is written as a script too: `# %%` begins a cell.
"""
