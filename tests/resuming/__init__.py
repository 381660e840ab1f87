"""What each loader does when it resumes: `make resuming` runs them, and checks docs/resume-compared.md."""
