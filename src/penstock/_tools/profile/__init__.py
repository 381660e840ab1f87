"""`penstock profile`: tries a dataset with different workers, and recommends settings."""
