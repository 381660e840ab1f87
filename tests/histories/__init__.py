"""Random histories: programs that use loaders in every order of operations, checked against a model.

    python -m tests.histories --operations 100000 --seed 1

A seed makes a history: a dataset, settings and a list of operations (`writing`). The history is written as a Python
program (`checked` has the classes that it uses), and the program is what runs, in a process of its own (`running`).
Each operation is done by penstock and by the model (`model`), a plain loop without engine, workers or memory of its
own; the program fails where the two differ. If it fails, hangs, crashes, prints anything to stderr or leaves anything
behind, the history is shortened for as long as it still fails (`shrinking`), and its program is printed.
"""
