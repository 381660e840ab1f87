"""`penstock profile`: tries a dataset with different workers, and says which settings to use."""
